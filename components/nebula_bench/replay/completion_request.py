"""A trace's request as the body of an OpenAI completion call."""

import msgspec
import numpy as np

from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.replay.settings import Marks
from nebula_bench.workload import TraceRequest

SPANS_ANNOTATION = "nebula.spans"
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
    request: TraceRequest, *, model: str, max_tokens: int, marks: Marks, vocabulary: PseudoVocabulary
) -> bytes:
    """JSON body for `/v1/completions`: the segments' pseudo tokens one behind another, streamed."""
    tokens = np.concatenate([vocabulary.tokens(segment.id, segment.tokens) for segment in request.segments])
    body = _CompletionRequest(
        model=model,
        prompt=tokens.tolist(),
        max_tokens=max_tokens,
        nvext=_Nvext(annotations=(spans_annotation(request),) if marks is Marks.SPANS else ()),
    )
    return msgspec.json.encode(body)


def spans_annotation(request: TraceRequest) -> str:
    spans = msgspec.json.encode(request.spans()).decode()
    return f"{SPANS_ANNOTATION}={spans}"
