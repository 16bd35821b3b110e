"""What a prompt gets from other workers before the engine has it, and what others may wait for meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from nebula_protocol.card import WorkerCard
from nebula_protocol.ids import Origin
from nebula_protocol.plan import SegmentPlan, Source
from nebula_protocol.receipt import FallbackReason
from nebula_protocol.tokens import token_bytes
from pic_worker.core.engine_request import EngineRequest
from pic_worker.core.store_entry import SegmentKey
from pic_worker.ports import Clock
from pic_worker.segment_arrivals import SegmentArrivals
from pic_worker.segment_fetcher import SegmentFetcher
from pic_worker.segment_flight import Brought, RemoteSegment, SegmentResult

_REMOTE = frozenset((Source.FETCH, Source.JOIN, Source.COMPUTE_AT))


@dataclass(frozen=True, slots=True)
class Intake:
    """What came of the segments that a prompt was to get from elsewhere."""

    results: Mapping[SegmentKey, SegmentResult] = field(default_factory=dict)
    wait_s: float = 0.0


NO_INTAKE = Intake()


class KnownSegments(Protocol):
    def origin_of(self, key: SegmentKey) -> Origin | None:
        """Of a segment in this worker's store; None for one that is not there."""
        ...


class SegmentIntake:
    """Brings, joins and announces segments for the prompts of one engine."""

    def __init__(
        self,
        *,
        card: WorkerCard,
        fetcher: SegmentFetcher | None,
        arrivals: SegmentArrivals,
        known: KnownSegments,
        join_grace_s: float,
        clock: Clock,
    ) -> None:
        """
        Args:
            fetcher: None where segments stay where they are.
            join_grace_s: how long a segment is waited for that nobody here has begun to compute.
        """
        self._card = card
        self._fetcher = fetcher
        self._arrivals = arrivals
        self._known = known
        self._join_grace_s = join_grace_s
        self._clock = clock

    @asynccontextmanager
    async def prepared(self, request: EngineRequest) -> AsyncIterator[Intake]:
        """Waits for what the plan brings, within its budget. Inside, that stays in place, and what the prompt computes
        can be joined."""
        remote, local_joins = self._wanted(request)
        awaited = {segment.key for segment in remote} | local_joins
        own = [key for plan in request.segments if (key := _key(request, plan)) not in awaited]
        with ExitStack() as producing:
            producing.enter_context(self.producing(own))
            if not awaited:
                yield NO_INTAKE
                return
            begun_s = self._clock()
            joining = asyncio.ensure_future(self._join(local_joins, request.wait_budget_s))
            try:
                async with self._brought(request, remote) as brought:
                    results = {**brought, **await joining}
                    failed = [key for key, result in results.items() if not isinstance(result, Brought)]
                    producing.enter_context(self.producing(failed))
                    yield Intake(results, self._clock() - begun_s)
            finally:
                joining.cancel()

    @contextmanager
    def producing(self, keys: Iterable[SegmentKey]) -> Iterator[None]:
        """Others may wait for these, until the block is left."""
        begun = tuple(keys)
        for key in begun:
            self._arrivals.begin(key)
        try:
            yield
        finally:
            for key in begun:
                self._arrivals.end(key)

    def is_coming(self, key: SegmentKey) -> bool:
        """Whether this worker has it, or is producing it."""
        return self._known.origin_of(key) is not None or self._arrivals.is_coming(key)

    # ----

    def _wanted(self, request: EngineRequest) -> tuple[list[RemoteSegment], set[SegmentKey]]:
        """What comes from other workers, and what other requests compute here."""
        remote: list[RemoteSegment] = []
        local_joins: set[SegmentKey] = set()
        if request.domain_differs or not request.has_plan:
            return remote, local_joins
        for plan in request.segments:
            if plan.source not in _REMOTE or plan.from_worker is None:
                continue
            key = _key(request, plan)
            if plan.from_worker.worker_id == self._card.worker_id:
                if plan.source is Source.JOIN:
                    local_joins.add(key)
            elif self._fetcher is not None:
                tokens = token_bytes(request.tokens[plan.start : plan.end])
                compute_s = self._card.step_cost.marginal_s(plan.end - plan.start, plan.start)
                remote.append(
                    RemoteSegment(
                        key=key,
                        token_bytes=tokens,
                        source=plan.source,
                        from_worker=plan.from_worker.worker_id,
                        keep=plan.keep,
                        compute_s=compute_s,
                    )
                )
        return remote, local_joins

    @asynccontextmanager
    async def _brought(
        self, request: EngineRequest, remote: Sequence[RemoteSegment]
    ) -> AsyncIterator[Mapping[SegmentKey, SegmentResult]]:
        if self._fetcher is None or not remote:
            yield {}
            return
        async with self._fetcher.bring(request.request_id, remote, request.wait_budget_s) as results:
            yield results

    async def _join(self, keys: Iterable[SegmentKey], wait_s: float) -> dict[SegmentKey, SegmentResult]:
        keys = tuple(keys)
        came = await asyncio.gather(*(self._join_one(key, wait_s) for key in keys))
        return dict(zip(keys, came, strict=True))

    async def _join_one(self, key: SegmentKey, wait_s: float) -> SegmentResult:
        # Nothing is awaited between the look and the wait: no news can be missed.
        if self._known.origin_of(key) is None:
            await self._arrivals.wait(key, wait_s=wait_s, grace_s=self._join_grace_s)
        origin = self._known.origin_of(key)
        return FallbackReason.LATE if origin is None else Brought(Source.JOIN, origin)


def _key(request: EngineRequest, plan: SegmentPlan) -> SegmentKey:
    return SegmentKey(request.domain_id, plan.segment_hash)
