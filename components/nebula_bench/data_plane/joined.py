"""Two requests for the same unknown passages at the same time, on two workers: how often each passage is computed."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from nebula_bench.data_plane.first_answer import ChosenWorkerClient, FirstAnswer
from nebula_bench.pic_vllm.passage_prompts import MarkedPrompt, PassagePrompts, Tokens
from nebula_bench.serving.progress import Progress
from nebula_protocol.ids import SegmentHash, WorkerId
from nebula_protocol.plan import Source
from nebula_protocol.receipt import Receipt

_APART_S = 0.1
"""So that the requests come to the router in the order in which they were sent."""


@dataclass(frozen=True, slots=True)
class JoinedPair:
    """The worker of the one computes, that of the other takes part in it."""

    first: FirstAnswer
    second: FirstAnswer

    @property
    def num_computations(self) -> int:
        """Of the passage that was computed most often."""
        return max(count_computations((self.first.receipt, self.second.receipt)).values())

    @property
    def num_joined(self) -> int:
        """Passages that one of the two got from the other's computation."""
        segments = (*self.first.receipt.segments, *self.second.receipt.segments)
        return sum(segment.done is Source.JOIN for segment in segments)


@dataclass(frozen=True, slots=True)
class JoinedPairs:
    pairs: tuple[JoinedPair, ...]
    num_in_front: int
    """Other passages that the second one's worker computes first."""

    @property
    def most_computations(self) -> int:
        return max(pair.num_computations for pair in self.pairs)

    @property
    def num_joined(self) -> int:
        """In the pair with the fewest."""
        return min(pair.num_joined for pair in self.pairs)

    @property
    def first_s(self) -> float:
        """The median."""
        return median(pair.first.after_s for pair in self.pairs)

    @property
    def second_s(self) -> float:
        """The median."""
        return median(pair.second.after_s for pair in self.pairs)


def count_computations(receipts: Iterable[Receipt]) -> Counter[SegmentHash]:
    """How often each segment was computed: inside a request, or by a helper alone, whether it came in time or not."""
    counts: Counter[SegmentHash] = Counter()
    for receipt in receipts:
        for segment in receipt.segments:
            counts[segment.segment_hash] += segment.done is Source.COMPUTE
            counts[segment.segment_hash] += segment.planned is Source.COMPUTE_AT
    return counts


async def measure_joined(
    client: ChosenWorkerClient,
    workers: Sequence[WorkerId],
    prompts: PassagePrompts,
    *,
    num_pairs: int,
    num_in_front: int,
    progress: Progress,
) -> JoinedPairs:
    """Each pair has passages of its own, in another order in each prompt; the workers take turns.

    Two idle workers that are asked at the same moment are done soonest when both compute. So the second one has
    another prompt in front, of so many passages.

    Raises:
        BenchError: a request fails.
    """
    progress.begin("miss the same passages on two workers", num_pairs)
    pairs: list[JoinedPair] = []
    for number in range(num_pairs):
        first, second = (workers[(number + place) % len(workers)] for place in range(2))
        front = prompts.arrange(_fresh(prompts, num_in_front))
        passages = prompts.fresh_passages()
        asks = [(front, second), *((prompts.arrange(passages), worker) for worker in (first, second))]
        answers = await asyncio.gather(
            *(_ask_after(place * _APART_S, client, prompt, worker) for place, (prompt, worker) in enumerate(asks))
        )
        pairs.append(JoinedPair(first=answers[1], second=answers[2]))
        progress.advance()
    return JoinedPairs(tuple(pairs), num_in_front)


def _fresh(prompts: PassagePrompts, num_passages: int) -> list[Tokens]:
    passages: list[Tokens] = []
    while len(passages) < num_passages:
        passages += prompts.fresh_passages()
    return passages[:num_passages]


async def _ask_after(
    delay_s: float, client: ChosenWorkerClient, prompt: MarkedPrompt, worker_id: WorkerId
) -> FirstAnswer:
    await asyncio.sleep(delay_s)
    return await client.ask(prompt, worker_id)
