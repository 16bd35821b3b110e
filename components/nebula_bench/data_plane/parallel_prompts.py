"""Prompts of passages that no worker has seen, and what became of them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nebula_bench.workload import TraceRequest, TraceSegment

NUM_PASSAGES = 8
PASSAGE_TOKENS = (512, 1024, 2048)
ROW_PASSAGE_TOKENS = 1024
"""The size whose ratio has the bar."""
_QUESTION_TOKENS = 32
_ONE_CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Links:
    """How KV travels between workers."""

    bytes_per_s: float
    stream_pieces: int
    """1: a copy is of use once it is there as a whole."""


_FAST_BYTES_PER_S, _SLOW_BYTES_PER_S = 22e9, 2.8e9
_LAYER_BY_LAYER, _AS_A_WHOLE = 16, 1
FAST_LINKS = Links(_FAST_BYTES_PER_S, _LAYER_BY_LAYER)
FAST_WHOLE_LINKS = Links(_FAST_BYTES_PER_S, _AS_A_WHOLE)
SLOW_LINKS = Links(_SLOW_BYTES_PER_S, _LAYER_BY_LAYER)
SLOW_WHOLE_LINKS = Links(_SLOW_BYTES_PER_S, _AS_A_WHOLE)
ALL_LINKS = (FAST_LINKS, FAST_WHOLE_LINKS, SLOW_LINKS, SLOW_WHOLE_LINKS)


@dataclass(frozen=True, slots=True)
class ColdAnswer:
    """What became of one cold prompt."""

    passage_tokens: int
    ttft_s: float
    """In the workers' time."""
    num_helpers: int
    """Workers that computed passages for another one."""


@dataclass(frozen=True, slots=True)
class ColdRun:
    """All prompts on one cluster, one at a time."""

    answers: tuple[ColdAnswer, ...]

    def ttft_s(self, passage_tokens: int) -> float:
        """The median over the prompts of that size."""
        return statistics.median(one.ttft_s for one in self.answers if one.passage_tokens == passage_tokens)

    def num_helpers(self, passage_tokens: int) -> int:
        """Over all prompts of that size together."""
        return sum(one.num_helpers for one in self.answers if one.passage_tokens == passage_tokens)


def cold_prompts(num_prompts: int, sizes: Sequence[int] = PASSAGE_TOKENS) -> tuple[TraceRequest, ...]:
    """`num_prompts` of each size, the sizes in turn; no passage comes twice."""
    wanted = [(number, size) for number in range(num_prompts) for size in sizes]
    return tuple(_cold_prompt(index, number, size) for index, (number, size) in enumerate(wanted))


def passage_tokens(prompt: TraceRequest) -> int:
    return prompt.segments[0].tokens


def _cold_prompt(index: int, number: int, size: int) -> TraceRequest:
    name = f"cold-{size}-{number}"
    passages = [TraceSegment("passage", f"{name}-{passage}", size) for passage in range(NUM_PASSAGES)]
    question = TraceSegment("question", f"{name}-question", _QUESTION_TOKENS)
    return TraceRequest("cold", index, _ONE_CLIENT, (*passages, question))
