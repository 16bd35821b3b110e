"""What a prompt waits for before the engine has it, and what others may wait for meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

from msgspec import structs
from support.engine_world import OWN, PEER, join, passage, planned, span, unplanned
from support.placement_case import ROUND_CARD

from nebula_protocol.ids import Origin, RequestId
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from pic_worker.core.engine_request import EngineRequest
from pic_worker.core.store_entry import SegmentKey
from pic_worker.segment_arrivals import SegmentArrivals
from pic_worker.segment_fetcher import SegmentFetcher
from pic_worker.segment_flight import Brought, RemoteSegment, SegmentResult
from pic_worker.segment_intake import Intake, SegmentIntake

TOKENS = join(passage(0, 10), passage(1, 20), passage(2, 30))
CARD = structs.replace(ROUND_CARD, worker_id=OWN.worker_id)


class Bringer:
    """A fetcher whose results are given."""

    def __init__(self, *results: SegmentResult) -> None:
        self.results = results
        self.wanted: list[RemoteSegment] = []
        self.is_holding = False

    @asynccontextmanager
    async def bring(
        self, request_id: RequestId, wanted: Sequence[RemoteSegment], wait_budget_s: float
    ) -> AsyncIterator[Mapping[SegmentKey, SegmentResult]]:
        self.wanted += wanted
        self.is_holding = True
        yield {segment.key: result for segment, result in zip(wanted, self.results, strict=True)}
        self.is_holding = False


class World:
    def __init__(self, *results: SegmentResult) -> None:
        self.now_s = 0.0
        self.bringer = Bringer(*results)
        self.arrivals = SegmentArrivals(lambda: self.now_s)
        self.stored: dict[SegmentKey, Origin] = {}
        self.intake = SegmentIntake(
            card=CARD,
            fetcher=cast("SegmentFetcher", self.bringer),
            arrivals=self.arrivals,
            known=self,
            join_grace_s=1.0,
            clock=lambda: self.now_s,
        )

    def origin_of(self, key: SegmentKey) -> Origin | None:
        return self.stored.get(key)

    def coming(self, request: EngineRequest) -> list[bool]:
        return [self.arrivals.is_coming(key) for key in keys_of(request)]


def keys_of(request: EngineRequest) -> list[SegmentKey]:
    return [SegmentKey(request.domain_id, plan.segment_hash) for plan in request.segments]


def plan_of(first: Source, second: Source) -> EngineRequest:
    spans = [span(TOKENS, 10, 30, first, OWN), span(TOKENS, 30, 60, second, PEER, keep=False)]
    return planned("r", TOKENS, spans, wait_budget_s=5.0)


async def test_what_is_elsewhere_is_brought_and_what_is_computed_can_be_joined() -> None:
    world = World(Brought(Source.FETCH, Origin.ALONE))
    request = plan_of(Source.COMPUTE, Source.FETCH)
    async with world.intake.prepared(request) as intake:
        (wanted,) = world.bringer.wanted
        assert (wanted.from_worker, wanted.source, wanted.keep) == (PEER.worker_id, Source.FETCH, False)
        assert (wanted.num_tokens, wanted.compute_s) == (30, CARD.step_cost.marginal_s(30, 30))
        assert world.bringer.is_holding
        assert list(intake.results.values()) == [Brought(Source.FETCH, Origin.ALONE)]
        assert world.coming(request) == [True, False]
    assert not world.bringer.is_holding
    assert world.coming(request) == [False, False]


async def test_what_did_not_come_is_computed_and_can_be_joined_then() -> None:
    world = World(FallbackReason.LATE)
    request = plan_of(Source.COMPUTE, Source.COMPUTE_AT)
    async with world.intake.prepared(request):
        assert world.coming(request) == [True, True]
    assert world.coming(request) == [False, False]


async def test_a_request_that_breaks_off_leaves_nobody_waiting() -> None:
    world = World(FallbackReason.LATE)
    request = plan_of(Source.COMPUTE, Source.FETCH)
    try:
        async with world.intake.prepared(request):
            raise ConnectionError
    except ConnectionError:
        pass
    assert world.coming(request) == [False, False]


async def test_a_segment_that_another_request_computes_here_is_waited_for() -> None:
    world = World()
    request = plan_of(Source.JOIN, Source.COMPUTE)
    joined, _ = keys_of(request)
    world.arrivals.begin(joined)

    async def prepare() -> Intake:
        async with world.intake.prepared(request) as intake:
            return intake

    preparing = asyncio.create_task(prepare())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not preparing.done()
    world.stored[joined] = Origin.IN_CONTEXT
    world.now_s = 2.0
    world.arrivals.stored(joined)
    assert await preparing == Intake({joined: Brought(Source.JOIN, Origin.IN_CONTEXT)}, 2.0)
    assert not world.bringer.wanted


async def test_without_a_plan_nothing_is_brought() -> None:
    world = World()
    async with world.intake.prepared(unplanned("r", TOKENS, ((10, 30),))) as intake:
        assert intake == Intake()
        assert not world.bringer.wanted
