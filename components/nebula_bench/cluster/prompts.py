"""Requests as the router sees them, made from a trace."""

import numpy as np

from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.workload import TraceRequest, TraceSegment
from nebula_protocol.annotations import RequestOptions
from nebula_protocol.ids import RequestId
from nebula_protocol.tokens import TokenArray
from nebula_router.request import RoutedRequest


class PromptMaker:
    """Pseudo tokens for each segment id, made once; the spans are the trace's segments."""

    def __init__(self, output_tokens: int, vocabulary: PseudoVocabulary | None = None) -> None:
        self._output_tokens = output_tokens
        self._vocabulary = vocabulary or PseudoVocabulary()
        self._known: dict[TraceSegment, TokenArray] = {}

    def routed_request(self, traced: TraceRequest) -> RoutedRequest:
        tokens = np.concatenate([self._tokens(segment) for segment in traced.segments])
        return RoutedRequest(
            request_id=RequestId(f"{traced.workload}-{traced.index}"),
            body={},
            token_ids=tokens.tolist(),
            tokens=tokens,
            max_tokens=self._output_tokens,
            options=RequestOptions(spans=traced.spans()),
        )

    def _tokens(self, segment: TraceSegment) -> TokenArray:
        tokens = self._known.get(segment)
        if tokens is None:
            tokens = self._known[segment] = self._vocabulary.tokens(segment.id, segment.tokens)
        return tokens
