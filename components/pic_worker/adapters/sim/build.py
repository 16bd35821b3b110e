"""Puts a simulated worker together: core, links, NATS."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nats.aio.client import Client
from tokenizers import Tokenizer

from nebula_nats.connection import NatsUnavailableError, connect
from nebula_nats.event_publisher import EventPublisher
from nebula_protocol.card import WorkerCard
from nebula_protocol.cut_settings import make_cutter_config
from nebula_protocol.errors import ProtocolError
from nebula_protocol.ids import WorkerEpoch, WorkerId
from nebula_protocol.subjects import Topic
from pic_worker.adapters.nats.peers import NatsPeers
from pic_worker.adapters.nats.server import NatsServer
from pic_worker.adapters.sim.costs import make_costs
from pic_worker.adapters.sim.engine_setup import make_card, make_engine_config
from pic_worker.core.link import Link
from pic_worker.core.sim_engine import SimEngine
from pic_worker.decode_service import DecodeService
from pic_worker.errors import StartError
from pic_worker.fetcher import Fetcher
from pic_worker.metrics import WorkerMetrics
from pic_worker.ports import BlockEvents
from pic_worker.prompt_cutter import PromptCutter, SaltedHasher
from pic_worker.service import Links, PrefillService
from pic_worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class PrefillWorker:
    service: PrefillService
    cutter: PromptCutter
    metrics: WorkerMetrics
    answer_token_ids: Sequence[int]
    client: Client
    server: NatsServer
    loop: "asyncio.Task[None]"

    def answer_token(self, index: int) -> int:
        """The answer's token that follows the prompt and `index` tokens of the answer."""
        return self.answer_token_ids[index % len(self.answer_token_ids)]

    async def close(self) -> None:
        await self.server.stop()
        self.loop.cancel()
        await asyncio.wait((self.loop,))
        await self.client.close()


@dataclass(frozen=True, slots=True)
class DecodeWorker:
    service: DecodeService
    client: Client

    async def close(self) -> None:
        await self.client.close()


async def build_prefill(
    settings: WorkerSettings,
    worker_id: WorkerId,
    nats_url: str,
    *,
    block_events: BlockEvents,
    hash_salted: SaltedHasher,
) -> PrefillWorker:
    """A running prefill worker, reachable by its peers.

    Raises:
        StartError: a setting, the tokenizer or NATS is missing.
    """
    costs, tokenizer = make_costs(settings), _load_tokenizer(settings)
    card = make_card(settings, costs, worker_id, WorkerEpoch(time.time_ns()))
    client = await _connect(nats_url, f"prefill-{worker_id}")
    links = Links(egress=Link(costs.link), ingress=Link(costs.link))
    metrics = WorkerMetrics()
    service = PrefillService(
        card=card,
        engine=SimEngine(make_engine_config(settings, costs, card), costs.step, costs.load),
        fetcher=Fetcher(
            worker_id=worker_id,
            peers=NatsPeers(client, settings.namespace),
            ingress=links.ingress,
            link_fit=costs.link,
            kv_bytes_per_token=costs.kv_bytes_per_token,
            clock=time.monotonic,
        ),
        links=links,
        block_events=block_events,
        segment_events=EventPublisher(
            client,
            namespace=settings.namespace,
            component=settings.component,
            topic=Topic.PIC_EVENTS,
            publisher_id=worker_id,
        ),
        metrics=metrics,
        clock=time.monotonic,
    )
    server = NatsServer(client, settings.namespace, worker_id, service)
    await server.start()
    return PrefillWorker(
        service=service,
        cutter=_cutter(settings, tokenizer, card, hash_salted),
        metrics=metrics,
        answer_token_ids=_encode(tokenizer, settings.sim.answer),
        client=client,
        server=server,
        loop=asyncio.create_task(service.run()),
    )


async def build_decode(settings: WorkerSettings, worker_id: WorkerId, nats_url: str) -> DecodeWorker:
    """A decode worker.

    Raises:
        StartError: a setting, the tokenizer or NATS is missing.
    """
    costs, tokenizer = make_costs(settings), _load_tokenizer(settings)
    client = await _connect(nats_url, f"decode-{worker_id}")
    service = DecodeService(
        worker_id=worker_id,
        peers=NatsPeers(client, settings.namespace),
        link=Link(costs.link),
        link_fit=costs.link,
        clock=time.monotonic,
        token_s=costs.decode_token_s,
        answer_token_ids=_encode(tokenizer, settings.sim.answer),
    )
    return DecodeWorker(service=service, client=client)


async def _connect(nats_url: str, name: str) -> Client:
    try:
        return await connect(nats_url, name)
    except NatsUnavailableError as error:
        raise StartError(str(error)) from error


def _load_tokenizer(settings: WorkerSettings) -> Tokenizer:
    path = Path(settings.model_path) / "tokenizer.json"
    if not path.is_file():
        raise StartError(f"there is no tokenizer at {path}")
    tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    return tokenizer


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return token_ids


def _cutter(
    settings: WorkerSettings, tokenizer: Tokenizer, card: WorkerCard, hash_salted: SaltedHasher
) -> PromptCutter:
    try:
        config = make_cutter_config(settings.cut, lambda text: _encode(tokenizer, text))
    except ProtocolError as error:
        raise StartError(str(error)) from error
    return PromptCutter(
        config=config,
        block_size_tokens=settings.block_size_tokens,
        domain_id=card.domain.domain_id,
        pic=settings.pic,
        hash_salted=hash_salted,
    )
