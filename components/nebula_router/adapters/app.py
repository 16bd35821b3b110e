"""Puts the router together and serves until it is told to stop."""

import asyncio
import os
import time
from pathlib import Path

import structlog
from nats.aio.client import Client
from tokenizers import Tokenizer

from nebula_nats.connection import NatsUnavailableError, connect
from nebula_nats.event_publisher import EventPublisher
from nebula_process.model_vocabulary import read_vocabulary_tokens
from nebula_process.ready_file import touch_ready_file
from nebula_protocol.cut_settings import make_cutter_config
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.errors import ProtocolError
from nebula_protocol.ids import WorkerId
from nebula_protocol.subjects import Topic
from nebula_router.adapters.dynamo.block_hasher import hash_salted_blocks
from nebula_router.adapters.dynamo.frontend_endpoint import FrontendEndpoint
from nebula_router.adapters.dynamo.runtime import drain_on_signal, register, start_runtime
from nebula_router.adapters.dynamo.worker_pool import DynamoWorkerPool
from nebula_router.adapters.nats.decision_sink import NatsDecisionSink
from nebula_router.adapters.nats.event_feed import NatsEventFeed
from nebula_router.adapters.nats.review_sink import NatsReviewSink
from nebula_router.adapters.nats.router_peers import NatsRouterPeers
from nebula_router.adapters.nats.split_sink import NatsSplitSink
from nebula_router.adapters.nats.state_source import NatsStateSource
from nebula_router.control import SplitControl
from nebula_router.decide import RouterState
from nebula_router.errors import StartError
from nebula_router.ingest import Ingest
from nebula_router.metrics import RouterMetrics
from nebula_router.replicas import Replicas
from nebula_router.service import RouterService
from nebula_router.settings import RouterSettings

log = structlog.get_logger()

_FIRST_WORKER_POLL_S = 0.05
_ROUTERS_POLL_S = 1.0


async def run(settings: RouterSettings) -> None:
    """Serves the model until the runtime is shut down.

    Raises:
        StartError: a setting or a service that it needs is missing.
    """
    cutter = _read_cutter(settings)
    nats_url = os.environ.get("NATS_SERVER", "nats://127.0.0.1:4222")
    try:
        client = await connect(nats_url, "nebula-router")
    except NatsUnavailableError as error:
        raise StartError(str(error)) from error
    # Behind NATS, for which Dynamo's runtime waits without end from 1.6 on.
    runtime = start_runtime(settings.metrics_port)
    endpoint = runtime.endpoint(f"{settings.namespace}.{settings.component}.generate")

    pool = settings.pool_namespace
    prefill_pool = await DynamoWorkerPool.watch(runtime, f"{pool}.prefill.generate")
    publisher_id = endpoint.connection_id()
    metrics = RouterMetrics()
    endpoint.metrics.register_prometheus_expfmt_callback(metrics.exposition)
    state = RouterState(settings, cutter, hash_salted_blocks)
    own_id = WorkerId(endpoint.connection_id())
    routers = await DynamoWorkerPool.watch(runtime, f"{settings.namespace}.{settings.component}.generate")
    peers = NatsRouterPeers(client, pool)
    replicas = Replicas(own_id, state=state, live_routers=routers.live_workers, send=peers.send, clock=time.monotonic)
    service = RouterService(
        settings,
        state=state,
        prefill_pool=prefill_pool,
        decisions=NatsDecisionSink(_publisher(client, settings, Topic.DECISIONS, publisher_id))
        if settings.publish_decisions
        else None,
        metrics=metrics,
        clock=time.monotonic,
        replicas=replicas,
        vocabulary_tokens=read_vocabulary_tokens(settings.model_path),
    )
    ingest = Ingest(
        state=state,
        feed=await NatsEventFeed.subscribe(client, pool),
        states=NatsStateSource(client, pool),
        prefill_pool=prefill_pool,
        metrics=metrics,
        clock=time.monotonic,
    )
    reviews = _publisher(client, settings, Topic.SPLITS, own_id) if settings.publish_decisions else None
    control = _split_control(state, client, pool, reviews, metrics, replicas)
    ingesting = asyncio.create_task(_ingest(ingest, control, replicas, peers))
    try:
        await _first_worker(state, ingesting)
        await register(
            endpoint,
            settings,
            block_size_tokens=state.block_size_tokens,
            context_tokens=state.context_tokens,
        )
        drain_on_signal(runtime, endpoint, lambda: service.num_running, settings.drain_s)
        touch_ready_file()
        log.info("router_serving", model=settings.model_name, num_workers=len(state.worker_ids()))
        handler = FrontendEndpoint(service, own_id)
        serving = asyncio.ensure_future(endpoint.serve_endpoint(handler.generate, graceful_shutdown=True))
        await asyncio.wait((serving, ingesting), return_when=asyncio.FIRST_COMPLETED)
        if ingesting.done():
            ingesting.result()
        await serving
    finally:
        ingesting.cancel()
        await client.close()


def _split_control(
    state: RouterState,
    client: Client,
    pool: str,
    reviews: EventPublisher | None,
    metrics: RouterMetrics,
    replicas: Replicas,
) -> SplitControl | None:
    if state.split is None:
        return None
    return SplitControl(
        state.split,
        state=state,
        sink=NatsSplitSink(client, pool),
        reviews=None if reviews is None else NatsReviewSink(reviews),
        metrics=metrics,
        clock=time.monotonic,
        steers=replicas.steers,
    )


def _publisher(client: Client, settings: RouterSettings, topic: Topic, publisher_id: int) -> EventPublisher:
    return EventPublisher(
        client,
        namespace=settings.namespace,
        component=settings.component,
        topic=topic,
        publisher_id=publisher_id,
    )


async def _ingest(ingest: Ingest, control: SplitControl | None, replicas: Replicas, peers: NatsRouterPeers) -> None:
    """All loops, until cancelled; if one fails, all end."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ingest.run())
        if control is not None:
            tasks.create_task(control.run())
        tasks.create_task(peers.run(replicas.take))
        tasks.create_task(_follow_routers(replicas))


async def _follow_routers(replicas: Replicas) -> None:
    replicas.say_hello()
    while True:
        await asyncio.sleep(_ROUTERS_POLL_S)
        replicas.forget_departed()


async def _first_worker(state: RouterState, ingesting: "asyncio.Task[None]") -> None:
    """Block size and context are the workers' to tell, and the frontend needs them."""
    while not state.worker_ids():
        if ingesting.done():
            ingesting.result()
        await asyncio.sleep(_FIRST_WORKER_POLL_S)


def _read_cutter(settings: RouterSettings) -> CutterConfig:
    path = Path(settings.model_path) / "tokenizer.json"
    if not path.is_file():
        raise StartError(f"there is no tokenizer at {path}")
    tokenizer: Tokenizer = Tokenizer.from_file(str(path))

    def encode(text: str) -> list[int]:
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return token_ids

    try:
        return make_cutter_config(settings.cut, encode)
    except ProtocolError as error:
        raise StartError(str(error)) from error
