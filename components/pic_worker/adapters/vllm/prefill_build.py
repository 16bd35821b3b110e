"""Puts a prefill worker on vLLM together: engine, feeds, NATS."""

import asyncio
import time
from contextlib import AsyncExitStack

import structlog
from msgspec import structs
from nats.aio.client import Client
from tokenizers import Tokenizer
from vllm.platforms import current_platform

from nebula_nats.event_publisher import EventPublisher
from nebula_protocol.card import WorkerCard
from nebula_protocol.hashing import HashArray, hash_blocks
from nebula_protocol.ids import DpRank, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.subjects import Topic
from nebula_protocol.tokens import TokenArray
from pic_worker.adapters.data_plane import DataPlane, WorkerIdentity, announce, nats_directory, start_data_plane
from pic_worker.adapters.nats.client import connect_worker
from pic_worker.adapters.nats.server import NatsServer
from pic_worker.adapters.prompt_cutting import load_tokenizer, make_cutter
from pic_worker.adapters.vllm.card import make_card
from pic_worker.adapters.vllm.device_blocks import DeviceBlocks
from pic_worker.adapters.vllm.engine import VllmEngine
from pic_worker.adapters.vllm.engine_catalogue import EngineCatalogue
from pic_worker.adapters.vllm.engine_events import EngineEvents
from pic_worker.adapters.vllm.engine_feed import EngineFeed
from pic_worker.adapters.vllm.prefill_service import PrefillService
from pic_worker.adapters.vllm.receipts import ReceiptMaker
from pic_worker.adapters.vllm.sampled import token_text_of
from pic_worker.adapters.vllm.sockets import SocketFolder
from pic_worker.adapters.vllm.warm_up import measure_step_cost, run_shortest
from pic_worker.adapters.vllm.workers import VllmPrefillWorker
from pic_worker.core.event_log import EventLog
from pic_worker.core.state_mirror import StateMirror
from pic_worker.errors import StartError
from pic_worker.metrics import WorkerMetrics
from pic_worker.ports import BlockEvents
from pic_worker.prompt_cutter import SaltedHasher
from pic_worker.segment_arrivals import SegmentArrivals
from pic_worker.segment_intake import SegmentIntake
from pic_worker.settings import WorkerSettings

log = structlog.get_logger()

_CLEARED_LIMIT_S = 30.0


async def build_prefill_worker(
    settings: WorkerSettings,
    worker_id: WorkerId,
    nats_url: str,
    *,
    block_events: BlockEvents,
    hash_salted: SaltedHasher,
) -> VllmPrefillWorker:
    """A running prefill worker, reachable by its peers.

    Raises:
        StartError: a setting, the tokenizer or NATS is missing, or vLLM does not start.
    """
    tokenizer = load_tokenizer(settings)
    async with AsyncExitStack() as started:
        client = await connect_worker(nats_url, f"prefill-{worker_id}")
        started.push_async_callback(client.close)
        sockets = SocketFolder.make()
        started.callback(sockets.remove)
        feed = EngineFeed(sockets)
        started.callback(feed.close)
        metrics = WorkerMetrics()
        metrics.set_split(settings.prefix_ratio)
        arrivals = SegmentArrivals(time.monotonic)
        events = _make_events(settings, feed, metrics, block_events, hash_salted, arrivals)
        engine = await VllmEngine.start(settings, sockets)
        started.push_async_callback(engine.close)
        card = await _warm_up(settings, worker_id, engine, events)
        cutter = make_cutter(settings, tokenizer, card.domain.domain_id, hash_salted)
        catalogue = EngineCatalogue(feed)
        plane = await _start_plane(settings, card, engine, catalogue, client, arrivals, metrics)
        if plane is not None:
            started.push_async_callback(plane.close)
        intake = SegmentIntake(
            card=card,
            fetcher=None if plane is None else plane.fetcher,
            arrivals=arrivals,
            known=events,
            join_grace_s=settings.data_plane.join_grace_s,
            clock=time.monotonic,
        )
        service = _make_service(settings, card, engine, events, intake, metrics, tokenizer)
        main_task = asyncio.create_task(_run(card, engine, events, catalogue, _publisher(client, settings, worker_id)))
        started.push_async_callback(_end, main_task)
        await announce(client, settings.pool_namespace, worker_id, plane)
        server = NatsServer(client, settings.pool_namespace, worker_id, service)
        await server.start()
        started.push_async_callback(server.stop)
        return VllmPrefillWorker(
            service=service,
            cutter=cutter,
            metrics=metrics,
            engine=engine,
            main_task=main_task,
            started=started.pop_all(),
        )


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait((task,))


def _make_events(
    settings: WorkerSettings,
    feed: EngineFeed,
    metrics: WorkerMetrics,
    block_events: BlockEvents,
    hash_salted: SaltedHasher,
    arrivals: SegmentArrivals,
) -> EngineEvents:
    def hash_lineage(tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray:
        return hash_salted(tokens, block_size_tokens, lineage) if lineage else hash_blocks(tokens, block_size_tokens)

    mirror, event_log = StateMirror(), EventLog(DpRank(0))
    return EngineEvents(
        feed=feed,
        mirror=mirror,
        event_log=event_log,
        device_blocks=DeviceBlocks(
            mirror=mirror,
            event_log=event_log,
            block_size_tokens=settings.block_size_tokens,
            hash_blocks=hash_lineage,
        ),
        block_events=block_events,
        metrics=metrics,
        arrivals=arrivals,
    )


async def _warm_up(
    settings: WorkerSettings, worker_id: WorkerId, engine: VllmEngine, events: EngineEvents
) -> WorkerCard:
    """Afterwards the engine is fast, its cache empty, and every event of it is heard from then on."""
    step_cost = await measure_step_cost(
        engine,
        max_tokens=min(settings.max_step_tokens, settings.context_tokens - 1, engine.facts.device_capacity_tokens),
        vocabulary=engine.facts.vocabulary,
    )
    log.info("step_cost_measured", **structs.asdict(step_cost))
    if not await engine.reset_prefix_cache():
        raise StartError("vLLM's prefix cache cannot be cleared after its first prompts")
    await run_shortest(engine)
    try:
        await asyncio.wait_for(events.await_cleared(), _CLEARED_LIMIT_S)
    except TimeoutError as error:
        raise StartError("vLLM's events about its prefix cache do not arrive") from error
    return make_card(
        settings,
        engine.facts,
        step_cost,
        worker_id,
        WorkerEpoch(time.time_ns()),
        has_gpu=not current_platform.is_cpu(),
    )


async def _start_plane(
    settings: WorkerSettings,
    card: WorkerCard,
    engine: VllmEngine,
    catalogue: EngineCatalogue,
    client: Client,
    arrivals: SegmentArrivals,
    metrics: WorkerMetrics,
) -> DataPlane | None:
    """None where segments stay where they are."""
    kind = settings.data_plane.kind
    if kind is None or not settings.pic:
        return None
    shape = await engine.store_shape(settings.vllm.page_tokens)
    plane = await start_data_plane(
        settings.data_plane,
        WorkerIdentity(worker_id=card.worker_id, epoch=card.epoch, domain_id=card.domain.domain_id),
        shape,
        catalogue=catalogue,
        directory=nats_directory(client, settings.pool_namespace),
        clock=time.monotonic,
        arrivals=arrivals,
        metrics=metrics,
    )
    log.info("data_plane_started", transport=kind.value, port=plane.card.port, num_ranks=len(shape.arena_paths))
    return plane


def _make_service(
    settings: WorkerSettings,
    card: WorkerCard,
    engine: VllmEngine,
    events: EngineEvents,
    intake: SegmentIntake,
    metrics: WorkerMetrics,
    tokenizer: Tokenizer,
) -> PrefillService:
    return PrefillService(
        settings=settings,
        card=card,
        engine=engine,
        events=events,
        receipts=ReceiptMaker(WorkerWithDpRank(card.worker_id), card.epoch, settings.block_size_tokens),
        intake=intake,
        metrics=metrics,
        token_text=token_text_of(tokenizer),
        sampling_defaults=engine.sampling_defaults(),
        clock=time.monotonic,
    )


def _publisher(client: Client, settings: WorkerSettings, worker_id: WorkerId) -> EventPublisher:
    return EventPublisher(
        client,
        namespace=settings.namespace,
        component=settings.component,
        topic=Topic.PIC_EVENTS,
        publisher_id=worker_id,
    )


async def _run(
    card: WorkerCard, engine: VllmEngine, events: EngineEvents, catalogue: EngineCatalogue, publisher: EventPublisher
) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(catalogue.run())
        tasks.create_task(engine.watch())
        tasks.create_task(events.run(card, publisher))
