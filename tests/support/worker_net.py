"""Prefill workers on one fake network, in the time of the running loop. Their costs are those of `engine_world`."""

import asyncio
from dataclasses import dataclass, replace

from support.engine_world import CONFIG, LOAD_COST, TOKEN_S, linear_table
from support.fake_peers import FakePeers
from support.recorded_events import RecordedBlockEvents, RecordedSegmentEvents

from nebula_protocol.card import WorkerCard
from nebula_protocol.cost import CostFit
from nebula_protocol.domain import Domain
from nebula_protocol.ids import Role, WorkerEpoch, WorkerId, WorkerWithDpRank
from pic_worker.core.link import Link
from pic_worker.core.sim_engine import SimEngine
from pic_worker.core.step_cost import StepCost
from pic_worker.fetcher import Fetcher
from pic_worker.metrics import WorkerMetrics
from pic_worker.service import Links, PrefillService

EPOCH = WorkerEpoch(7)
KV_BYTES_PER_TOKEN = CONFIG.kv_bytes_per_token
LINK = CONFIG.peer_link


def make_card(worker_id: WorkerId) -> WorkerCard:
    return WorkerCard(
        worker_id=worker_id,
        epoch=EPOCH,
        role=Role.PREFILL,
        domain=Domain(model="linear", block_size_tokens=CONFIG.block_size_tokens),
        engine="sim",
        pic=True,
        context_tokens=CONFIG.device_capacity_tokens,
        device_capacity_tokens=CONFIG.device_capacity_tokens,
        store_capacity_tokens=CONFIG.store_capacity_tokens,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        max_step_tokens=CONFIG.max_step_tokens,
        num_layers=CONFIG.num_layers,
        fusion=CONFIG.fusion,
        step_cost=CostFit(step_s=0.0, per_token_s=TOKEN_S, per_pair_s=0.0),
        peer_link=LINK,
        load_s_per_token=LOAD_COST.segment_s_per_token,
    )


@dataclass(frozen=True, slots=True)
class NetWorker:
    """One worker that runs, and all that it published."""

    at: WorkerWithDpRank
    engine: SimEngine
    service: PrefillService
    metrics: WorkerMetrics
    block_events: RecordedBlockEvents
    segment_events: RecordedSegmentEvents
    loop: "asyncio.Task[None]"


class WorkerNet:
    def __init__(self) -> None:
        self.peers = FakePeers()
        self._workers: list[NetWorker] = []

    def add(self, number: int, **changes: object) -> NetWorker:
        """A worker that runs at once; `changes` are to its engine's configuration."""
        clock = asyncio.get_running_loop().time
        at = WorkerWithDpRank(WorkerId(number))
        config = replace(CONFIG, worker=at, epoch=EPOCH, **changes)  # type: ignore[arg-type]
        engine = SimEngine(config, StepCost(linear_table()), LOAD_COST)
        links = Links(egress=Link(LINK), ingress=Link(LINK))
        metrics, block_events, segment_events = WorkerMetrics(), RecordedBlockEvents(), RecordedSegmentEvents()
        fetcher = Fetcher(
            worker_id=at.worker_id,
            peers=self.peers,
            ingress=links.ingress,
            link_fit=LINK,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            clock=clock,
            meter=metrics.transfers("sim"),
        )
        service = PrefillService(
            card=make_card(at.worker_id),
            engine=engine,
            fetcher=fetcher,
            links=links,
            block_events=block_events,
            segment_events=segment_events,
            metrics=metrics,
            clock=clock,
        )
        loop = asyncio.create_task(service.run())
        worker = NetWorker(at, engine, service, metrics, block_events, segment_events, loop)
        self.peers.join(at.worker_id, service)
        self._workers.append(worker)
        return worker

    async def close(self) -> None:
        """Stops all workers; one that failed raises its error."""
        for worker in self._workers:
            worker.loop.cancel()
        await asyncio.gather(*(worker.loop for worker in self._workers), return_exceptions=True)
        for worker in self._workers:
            if not worker.loop.cancelled():
                worker.loop.result()
