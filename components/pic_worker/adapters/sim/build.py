"""Puts a simulated worker together: core, links, NATS."""

import asyncio
import time

from nebula_nats.event_publisher import EventPublisher
from nebula_protocol.ids import WorkerEpoch, WorkerId
from nebula_protocol.subjects import Topic
from pic_worker.adapters.nats.client import connect_worker
from pic_worker.adapters.nats.peers import NatsPeers
from pic_worker.adapters.nats.server import NatsServer
from pic_worker.adapters.prompt_cutting import encode_text, load_tokenizer, make_cutter
from pic_worker.adapters.sim.costs import make_costs
from pic_worker.adapters.sim.engine_setup import make_card, make_engine_config
from pic_worker.adapters.sim.late_events import LateBlockEvents, LateEvents, LateSegmentEvents
from pic_worker.adapters.sim.workers import SimDecodeWorker, SimPrefillWorker
from pic_worker.core.fixed_answer import FixedAnswer
from pic_worker.core.link import Link
from pic_worker.core.sim_engine import SimEngine
from pic_worker.decode_service import DecodeService
from pic_worker.fetcher import Fetcher
from pic_worker.metrics import WorkerMetrics
from pic_worker.ports import BlockEvents, SegmentEvents
from pic_worker.prompt_cutter import SaltedHasher
from pic_worker.service import Links, PrefillService
from pic_worker.settings import WorkerSettings


async def build_prefill(
    settings: WorkerSettings,
    worker_id: WorkerId,
    nats_url: str,
    *,
    block_events: BlockEvents,
    hash_salted: SaltedHasher,
) -> SimPrefillWorker:
    """A running prefill worker, reachable by its peers.

    Raises:
        StartError: a setting, the tokenizer or NATS is missing.
    """
    costs, tokenizer = make_costs(settings), load_tokenizer(settings)
    card = make_card(settings, costs, worker_id, WorkerEpoch(time.time_ns()))
    client = await connect_worker(nats_url, f"prefill-{worker_id}")
    segment_events: SegmentEvents = EventPublisher(
        client,
        namespace=settings.namespace,
        component=settings.component,
        topic=Topic.PIC_EVENTS,
        publisher_id=worker_id,
    )
    late = None
    if costs.event_delay_s:
        late = LateEvents(block_events, segment_events, delay_s=costs.event_delay_s, clock=time.monotonic)
        block_events, segment_events = LateBlockEvents(late), LateSegmentEvents(late)
    links = Links(egress=Link(costs.link), ingress=Link(costs.link))
    metrics = WorkerMetrics()
    metrics.set_split(settings.prefix_ratio)
    service = PrefillService(
        card=card,
        engine=SimEngine(make_engine_config(settings, costs, card), costs.step, costs.load),
        fetcher=Fetcher(
            worker_id=worker_id,
            peers=NatsPeers(client, settings.pool_namespace),
            ingress=links.ingress,
            link_fit=costs.link,
            kv_bytes_per_token=costs.kv_bytes_per_token,
            clock=time.monotonic,
            meter=metrics.transfers(settings.engine),
        ),
        links=links,
        block_events=block_events,
        segment_events=segment_events,
        metrics=metrics,
        clock=time.monotonic,
    )
    server = NatsServer(client, settings.pool_namespace, worker_id, service)
    await server.start()
    return SimPrefillWorker(
        service=service,
        cutter=make_cutter(settings, tokenizer, card.domain.domain_id, hash_salted),
        metrics=metrics,
        answer=FixedAnswer(encode_text(tokenizer, settings.sim.answer)),
        device_capacity_tokens=settings.device_capacity_tokens,
        client=client,
        server=server,
        main_task=asyncio.create_task(_run(service, late)),
    )


async def _run(service: PrefillService, late: LateEvents | None) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(service.run())
        if late is not None:
            tasks.create_task(late.run())


async def build_decode(settings: WorkerSettings, worker_id: WorkerId, nats_url: str) -> SimDecodeWorker:
    """A decode worker.

    Raises:
        StartError: a setting, the tokenizer or NATS is missing.
    """
    costs, tokenizer = make_costs(settings), load_tokenizer(settings)
    client = await connect_worker(nats_url, f"decode-{worker_id}")
    answer = FixedAnswer(encode_text(tokenizer, settings.sim.answer))
    service = DecodeService(
        worker_id=worker_id,
        peers=NatsPeers(client, settings.pool_namespace),
        link=Link(costs.link),
        link_fit=costs.link,
        step_cost=costs.step,
        clock=time.monotonic,
        token_s=costs.decode_token_s,
        answer=answer,
    )
    return SimDecodeWorker(
        service=service,
        answer=answer,
        device_capacity_tokens=settings.device_capacity_tokens,
        context_tokens=settings.context_tokens,
        client=client,
    )
