"""The router's decisions while a benchmark runs: which workers it still counts on."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from nebula_bench.errors import BenchError
from nebula_nats.connection import NatsUnavailableError, connect
from nebula_protocol.codec import decode
from nebula_protocol.events import Decision, Envelope
from nebula_protocol.ids import WorkerId
from nebula_protocol.plan import Source
from nebula_protocol.subjects import Topic, all_event_subjects


class _Message(Protocol):
    data: bytes


@dataclass(frozen=True, slots=True)
class SeenDecision:
    at_s: float
    """When it arrived here, `time.perf_counter`."""
    worker_ids: frozenset[WorkerId]
    """Every worker that it names: considered, chosen, or to copy from."""
    helper_ids: frozenset[WorkerId] = frozenset()
    """Workers that are to compute segments for the chosen one."""


@dataclass(slots=True)
class DecisionFeed:
    seen: list[SeenDecision] = field(default_factory=list)

    def last_naming(self, worker_id: WorkerId) -> float | None:
        """When the last decision that names the worker arrived; None when none does."""
        return max((seen.at_s for seen in self.seen if worker_id in seen.worker_ids), default=None)

    def num_without(self, worker_id: WorkerId, after_s: float) -> int:
        """Decisions after `after_s`, not one of which may name the worker for this to say anything."""
        return sum(seen.at_s > after_s and worker_id not in seen.worker_ids for seen in self.seen)


@asynccontextmanager
async def open_decisions(nats_url: str) -> AsyncIterator[DecisionFeed]:
    """Fills with every decision that is published while it is open.

    Raises:
        BenchError: no NATS server answers.
    """
    feed = DecisionFeed()

    async def take(message: _Message) -> None:
        decision = decode(decode(message.data, Envelope).payload, Decision)
        feed.seen.append(
            SeenDecision(time.perf_counter(), frozenset(_named_workers(decision)), frozenset(_helpers(decision)))
        )

    try:
        client = await connect(nats_url, "nebula-bench")
    except NatsUnavailableError as error:
        raise BenchError(str(error)) from error
    try:
        await client.subscribe(all_event_subjects(Topic.DECISIONS), cb=take)
        await client.flush()
        yield feed
    finally:
        await client.close()


def _named_workers(decision: Decision) -> Iterator[WorkerId]:
    yield decision.plan.target.worker_id
    for candidate in decision.candidates:
        yield candidate.worker.worker_id
    for segment in decision.plan.segments:
        if segment.from_worker is not None:
            yield segment.from_worker.worker_id


def _helpers(decision: Decision) -> Iterator[WorkerId]:
    for segment in decision.plan.segments:
        if segment.source is Source.COMPUTE_AT and segment.from_worker is not None:
            yield segment.from_worker.worker_id
