"""Puts a worker's data plane together: its memory, what it gives away, and how it gets what others have."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from nats.aio.client import Client

from nebula_protocol.data_plane import DataPlaneCard, DataPlaneKind, PageGeometry
from nebula_protocol.ids import DomainId, WorkerEpoch, WorkerId
from pic_worker.adapters.mapped_pages import MappedPages
from pic_worker.adapters.nats.data_directory import NatsDataDirectory, answer_locations
from pic_worker.adapters.nixl.agent import NixlPages
from pic_worker.adapters.nixl.transport import NixlDelivery, NixlTransport
from pic_worker.adapters.tcp.server import DataServer
from pic_worker.adapters.tcp.transport import TcpDelivery, TcpTransport
from pic_worker.catalogue import Catalogue
from pic_worker.core.handshake import MIN_SECRET_BYTES
from pic_worker.data_plane_settings import DataPlaneSettings
from pic_worker.errors import StartError
from pic_worker.metrics import WorkerMetrics
from pic_worker.orderly_catalogue import OrderlyCatalogue
from pic_worker.ports import Clock
from pic_worker.segment_arrivals import SegmentArrivals
from pic_worker.segment_fetcher import SegmentFetcher
from pic_worker.segment_server import SegmentServer
from pic_worker.source_transfer import TransferPorts
from pic_worker.transport import DataDirectory, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreShape:
    """The engine's store as another process finds it."""

    arena_paths: tuple[str, ...]
    """In the order of ranks."""
    page_tokens: int
    page_bytes: int
    """Of one rank."""

    @property
    def kv_bytes_per_token(self) -> int:
        return self.page_bytes // self.page_tokens * len(self.arena_paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    worker_id: WorkerId
    epoch: WorkerEpoch
    domain_id: DomainId
    """Of the worker, without a tenant."""


class DataPlane:
    """Runs from `start` to `close`."""

    def __init__(
        self,
        *,
        card: DataPlaneCard,
        transport: Transport,
        fetcher: SegmentFetcher,
        segments: SegmentServer,
        arrivals: SegmentArrivals,
        started: AsyncExitStack,
    ) -> None:
        self.card = card
        self.transport = transport
        self.fetcher = fetcher
        self.segments = segments
        self.arrivals = arrivals
        self._started = started

    async def close(self) -> None:
        """Peers lose their sessions, requests their transfers; all leases and reservations are given back."""
        await self._started.aclose()


def read_secret(path: Path) -> bytes:
    """
    Raises:
        StartError: there is none, or it is too short.
    """
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise StartError(f"the data plane's secret cannot be read: {error.strerror}: {path.name}") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise StartError(f"the data plane's secret has {len(secret)} bytes; at least {MIN_SECRET_BYTES} are needed")
    return secret


async def start_data_plane(
    settings: DataPlaneSettings,
    identity: WorkerIdentity,
    shape: StoreShape,
    *,
    catalogue: Catalogue,
    directory: DataDirectory,
    clock: Clock,
    arrivals: SegmentArrivals | None = None,
    metrics: WorkerMetrics | None = None,
) -> DataPlane:
    """
    Args:
        arrivals: told of what the engine stores; None makes one that nobody tells.
        metrics: None makes some that nobody reads.

    Raises:
        StartError: the secret, the memory, the address or NIXL is missing; or `settings` turn it off.
    """
    kind, secret = _kind_and_secret(settings)
    async with AsyncExitStack() as started:
        memory = MappedPages(shape.arena_paths, shape.page_bytes)
        started.callback(memory.close)
        orderly = OrderlyCatalogue(catalogue)
        started.push_async_callback(orderly.settle)
        if arrivals is None:
            arrivals = SegmentArrivals(clock)
        metrics = metrics or WorkerMetrics()
        meter = metrics.transfers(kind.value)
        segments = SegmentServer(
            catalogue=orderly,
            arrivals=arrivals,
            lease_s=settings.lease_s,
            join_grace_s=settings.join_grace_s,
            clock=clock,
            kv_bytes_per_token=shape.kv_bytes_per_token,
            meter=meter,
        )
        _watch_pins(metrics, orderly, segments)
        lease_clock = asyncio.create_task(segments.run())
        started.callback(lease_clock.cancel)
        nixl = None
        if kind is DataPlaneKind.NIXL:
            nixl = NixlPages(identity.worker_id, memory)
            started.callback(nixl.close)
        server = DataServer(
            settings,
            secret,
            segments,
            deliver=TcpDelivery(memory) if nixl is None else NixlDelivery(memory),
            num_pages=memory.num_pages,
            attachment=b"" if nixl is None else nixl.attachment,
        )
        card = server.start(_card(settings, kind, identity, shape))
        started.push_async_callback(server.close)
        transport: Transport = (
            TcpTransport(card, secret, memory, settings.stall_s)
            if nixl is None
            else NixlTransport(card, secret, memory, nixl, settings.stall_s)
        )
        ports = TransferPorts(
            transport=transport,
            directory=directory,
            catalogue=orderly,
            arrivals=arrivals,
            clock=clock,
            kv_bytes_per_token=shape.kv_bytes_per_token,
            meter=meter,
        )
        fetcher = SegmentFetcher(ports, veto_ratio=settings.veto_ratio)
        started.push_async_callback(fetcher.close)
        return DataPlane(
            card=card,
            transport=transport,
            fetcher=fetcher,
            segments=segments,
            arrivals=arrivals,
            started=started.pop_all(),
        )


def _kind_and_secret(settings: DataPlaneSettings) -> tuple[DataPlaneKind, bytes]:
    kind = settings.kind
    if kind is None:
        raise StartError("the data plane is turned off")
    if not settings.secret_file:
        raise StartError(f"the data plane's transport {kind.value} needs a secret_file")
    return kind, read_secret(settings.secret_path)


def _watch_pins(metrics: WorkerMetrics, catalogue: OrderlyCatalogue, segments: SegmentServer) -> None:
    metrics.watch_pins(
        for_peers=lambda: segments.num_leases,
        for_requests=lambda: catalogue.num_leases - segments.num_leases,
        reservations=lambda: catalogue.num_reservations,
    )


async def announce(client: Client, namespace: str, worker_id: WorkerId, plane: DataPlane | None) -> None:
    """Tells who asks where this worker's data plane is, or that it has none."""
    await answer_locations(client, namespace, worker_id, None if plane is None else plane.card)


def nats_directory(client: Client, namespace: str) -> DataDirectory:
    return NatsDataDirectory(client, namespace)


def _card(
    settings: DataPlaneSettings, kind: DataPlaneKind, identity: WorkerIdentity, shape: StoreShape
) -> DataPlaneCard:
    geometry = PageGeometry(
        page_tokens=shape.page_tokens, page_bytes=shape.page_bytes, num_ranks=len(shape.arena_paths)
    )
    return DataPlaneCard(
        worker_id=identity.worker_id,
        epoch=identity.epoch,
        kind=kind,
        host=settings.host,
        port=settings.port,
        domain_id=identity.domain_id,
        geometry=geometry,
    )
