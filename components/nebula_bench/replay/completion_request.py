"""A trace's request as the body of an OpenAI completion call."""

import msgspec
import numpy as np

from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.replay.settings import Marks
from nebula_bench.span_annotation import spans_annotation
from nebula_bench.workload import TraceRequest

_EXTRA_FIELDS = ("worker_id", "timing", "engine_data")


class _Nvext(msgspec.Struct, frozen=True):
    annotations: tuple[str, ...]
    extra_fields: tuple[str, ...] = _EXTRA_FIELDS


class _CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    prompt: list[int]
    max_tokens: int
    nvext: _Nvext
    stream: bool = True


def encode_completion(
    request: TraceRequest,
    *,
    model: str,
    max_tokens: int,
    vocabulary: PseudoVocabulary,
    marks: Marks = Marks.SPANS,
    annotations: tuple[str, ...] = (),
) -> bytes:
    """JSON body for `/v1/completions`: the segments' pseudo tokens one behind another, streamed."""
    marked = (spans_annotation(request.spans()),) if marks is Marks.SPANS else ()
    tokens = np.concatenate([vocabulary.tokens(segment.id, segment.tokens) for segment in request.segments])
    body = _CompletionRequest(
        model=model,
        prompt=tokens.tolist(),
        max_tokens=max_tokens,
        nvext=_Nvext(annotations=(*marked, *annotations)),
    )
    return msgspec.json.encode(body)
