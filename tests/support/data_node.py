"""A worker's data plane without an engine: memory, a naive store, and one of the transports."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from support.data_store import DOMAIN, PAGE_TOKENS, FakeStore

from nebula_protocol.data_plane import AskSegments, DataPlaneCard, DataPlaneKind, Offers, PageGeometry
from nebula_protocol.ids import RequestId, WorkerEpoch, WorkerId
from nebula_protocol.plan import Source
from pic_worker.adapters.data_plane import DataPlane, StoreShape, WorkerIdentity, start_data_plane
from pic_worker.catalogue import LeasedSegment
from pic_worker.core.arena_ids import Page
from pic_worker.core.store_entry import SegmentKey
from pic_worker.data_plane_settings import DataPlaneSettings
from pic_worker.errors import LeaseEndedError, PeerGoneError, PeerRefusedError
from pic_worker.metrics import WorkerMetrics
from pic_worker.orderly_catalogue import OrderlyCatalogue
from pic_worker.segment_arrivals import SegmentArrivals
from pic_worker.segment_fetcher import SegmentFetcher
from pic_worker.segment_flight import RemoteSegment
from pic_worker.segment_server import SegmentServer
from pic_worker.source_transfer import TransferPorts
from pic_worker.transport import Landed, Landing, SegmentMove, Transport

NUM_RANKS = 2
PAGE_BYTES = 4096
NUM_PAGES = 256
STALL_S = 10.0
"""A busy machine may stop a process for a while."""


class Directory:
    """`DataDirectory` that a test fills."""

    def __init__(self) -> None:
        self.cards: dict[WorkerId, DataPlaneCard | None] = {}
        self.fresh: dict[WorkerId, DataPlaneCard] = {}
        """What is found once the card is forgotten."""

    async def locate(self, worker_id: WorkerId, timeout_s: float) -> DataPlaneCard:
        if worker_id not in self.cards:
            raise PeerGoneError(worker_id, "nobody is there")
        card = self.cards[worker_id]
        if card is None:
            raise PeerRefusedError(worker_id, "it has no data plane")
        return card

    def forget(self, worker_id: WorkerId) -> None:
        if worker_id in self.fresh:
            self.cards[worker_id] = self.fresh.pop(worker_id)


class HeapPages:
    """`PageMemory` of this process alone."""

    def __init__(self, num_pages: int = NUM_PAGES, page_bytes: int = PAGE_BYTES) -> None:
        self.num_ranks = NUM_RANKS
        self.num_pages = num_pages
        self.page_bytes = page_bytes
        self._bytes = [bytearray(num_pages * page_bytes) for _ in range(NUM_RANKS)]

    def view(self, rank: int, first: Page, num_pages: int) -> memoryview:
        if not (first >= 0 and 0 < num_pages <= self.num_pages - first):
            raise IndexError(first)
        return memoryview(self._bytes[rank])[first * self.page_bytes : (first + num_pages) * self.page_bytes]


@dataclass(slots=True)
class Node:
    """One worker, as a test sees it."""

    worker_id: WorkerId
    store: FakeStore
    memory: "HeapPages | ArenaFiles"
    arrivals: SegmentArrivals
    segments: SegmentServer
    fetcher: SegmentFetcher
    transport: Transport
    card: DataPlaneCard
    metrics: WorkerMetrics
    plane: DataPlane | None = None

    def write(self, segment: LeasedSegment, seed: int) -> None:
        """KV that is told apart by seed, rank and page."""
        for rank in range(NUM_RANKS):
            for number, page in enumerate(segment.pages):
                self.memory.view(rank, page, 1)[:] = kv_bytes(seed, rank, number, self.memory.page_bytes)

    def has(self, key: SegmentKey, seed: int) -> bool:
        """Whether the entry's KV is what `write` wrote elsewhere."""
        segment = self.store.entries[key].segment
        return all(
            self.memory.view(rank, page, 1) == kv_bytes(seed, rank, number, self.memory.page_bytes)
            for rank in range(NUM_RANKS)
            for number, page in enumerate(segment.pages)
        )


def kv_bytes(seed: int, rank: int, number: int, page_bytes: int) -> bytes:
    word = (seed * 1_000_003 + rank * 10_007 + number + 1).to_bytes(8, "little")
    return word * (page_bytes // 8)


class ArenaFiles:
    """Shared memory as the ranks make it: named by the process that has it open."""

    def __init__(self, num_pages: int = NUM_PAGES, page_bytes: int = PAGE_BYTES) -> None:
        self._files = [os.memfd_create(f"rank-{rank}") for rank in range(NUM_RANKS)]
        for file in self._files:
            os.ftruncate(file, num_pages * page_bytes)
        from pic_worker.adapters.mapped_pages import MappedPages

        self._mapped = MappedPages(self.paths, page_bytes)
        self.num_ranks = NUM_RANKS
        self.num_pages = num_pages
        self.page_bytes = page_bytes

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(f"/proc/{os.getpid()}/fd/{file}" for file in self._files)

    def view(self, rank: int, first: Page, num_pages: int) -> memoryview:
        return self._mapped.view(rank, first, num_pages)

    def close(self) -> None:
        self._mapped.close()
        for file in self._files:
            os.close(file)


# ---- the fake transport ----


class FakeNetwork:
    """Sources by worker; a transfer is a copy between two memories of this process."""

    def __init__(self) -> None:
        self.nodes: dict[WorkerId, Node] = {}
        self.is_damaging = False


class FakeTransport:
    def __init__(self, network: FakeNetwork, home_id: WorkerId) -> None:
        self._network = network
        self._home_id = home_id

    @asynccontextmanager
    async def open(self, source: DataPlaneCard) -> AsyncIterator["FakeSession"]:
        home = self._network.nodes[self._home_id]
        node = self._network.nodes.get(source.worker_id)
        if source.domain_id != home.card.domain_id or source.geometry != home.card.geometry:
            raise PeerRefusedError(source.worker_id, "it is of another kind")
        if node is None:
            raise PeerGoneError(source.worker_id, "nobody is there")
        session = FakeSession(self._network, home, node)
        try:
            yield session
        finally:
            session.close()


class FakeSession:
    def __init__(self, network: FakeNetwork, home: Node, source: Node) -> None:
        self._network = network
        self._home = home
        self._source = source
        self._close: list[object] = []

    async def ask(self, ask: AskSegments) -> AsyncIterator[Offers]:
        self._served = self._source.segments.serve(ask)
        async for offers in self._served.offers():
            yield offers

    async def take(self, moves: Sequence[SegmentMove], landed: Landing) -> None:
        for move in moves:
            await asyncio.sleep(0)
            if self._source.worker_id not in self._network.nodes:
                raise PeerGoneError(self._source.worker_id, "it is gone")
            try:
                self._served.hold(move.index)
            except LeaseEndedError:
                landed(move.index, Landed.LEASE_ENDED)
                continue
            for rank in range(NUM_RANKS):
                for there, here in zip(move.source_pages, move.home_pages, strict=True):
                    self._home.memory.view(rank, here, 1)[:] = self._source.memory.view(rank, there, 1)
            if not self._served.was_held(move.index):
                landed(move.index, Landed.LEASE_ENDED)
                continue
            landed(move.index, Landed.DAMAGED if self._network.is_damaging else Landed.INTACT)

    def close(self) -> None:
        if hasattr(self, "_served"):
            self._served.close()


# ---- building ----


class DataWorld:
    """Workers on one transport."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.directory = Directory()
        self.network = FakeNetwork()
        self._folder = folder
        self._ids = itertools.count(1)
        self._closing: list[ArenaFiles] = []
        secret = folder / "secret"
        secret.write_bytes(b"0123456789abcdef-deployment")
        self.secret_file = str(secret)

    async def start(
        self,
        *,
        num_pages: int = NUM_PAGES,
        page_bytes: int = PAGE_BYTES,
        lease_s: float = 10.0,
        veto_ratio: float = 1.5,
        secret_file: str | None = None,
        stall_s: float = STALL_S,
        join_grace_s: float = 0.05,
    ) -> Node:
        worker_id = WorkerId(next(self._ids))
        store = FakeStore(num_pages)
        if self.kind == "fake":
            node = self._start_fake(worker_id, store, num_pages, page_bytes, lease_s, veto_ratio, join_grace_s)
        else:
            settings = DataPlaneSettings.model_validate(
                {
                    "transport": self.kind,
                    "secret_file": secret_file or self.secret_file,
                    "lease_s": lease_s,
                    "stall_s": stall_s,
                    "veto_ratio": veto_ratio,
                    "join_grace_s": join_grace_s,
                }
            )
            node = await self._start_real(worker_id, store, num_pages, page_bytes, settings)
        self.directory.cards[worker_id] = node.card
        self.network.nodes[worker_id] = node
        return node

    async def stop(self, node: Node) -> None:
        """As when the worker ends in good order."""
        self.network.nodes.pop(node.worker_id, None)
        if node.plane is not None:
            await node.plane.close()

    async def close(self) -> None:
        for node in list(self.network.nodes.values()):
            await self.stop(node)
        for files in self._closing:
            files.close()

    def _start_fake(
        self, worker_id: WorkerId, store: FakeStore, num_pages: int, page_bytes: int,
        lease_s: float, veto_ratio: float, join_grace_s: float,
    ) -> Node:  # fmt: skip
        catalogue, arrivals = OrderlyCatalogue(store), SegmentArrivals(time.monotonic)
        metrics = WorkerMetrics()
        meter = metrics.transfers(self.kind)
        segments = SegmentServer(
            catalogue=catalogue, arrivals=arrivals, lease_s=lease_s, join_grace_s=join_grace_s, clock=time.monotonic,
            kv_bytes_per_token=kv_bytes_per_token(page_bytes), meter=meter,
        )  # fmt: skip
        metrics.watch_pins(
            for_peers=lambda: segments.num_leases,
            for_requests=lambda: catalogue.num_leases - segments.num_leases,
            reservations=lambda: catalogue.num_reservations,
        )
        transport = FakeTransport(self.network, worker_id)
        ports = TransferPorts(
            transport=transport,
            directory=self.directory,
            catalogue=catalogue,
            arrivals=arrivals,
            clock=time.monotonic,
            kv_bytes_per_token=kv_bytes_per_token(page_bytes),
            meter=meter,
        )
        geometry = PageGeometry(page_tokens=PAGE_TOKENS, page_bytes=page_bytes, num_ranks=NUM_RANKS)
        card = DataPlaneCard(
            worker_id=worker_id, epoch=WorkerEpoch(1), kind=DataPlaneKind.TCP, host="", port=0,
            domain_id=DOMAIN, geometry=geometry,
        )  # fmt: skip
        fetcher = SegmentFetcher(ports, veto_ratio=veto_ratio)
        memory = HeapPages(num_pages, page_bytes)
        return Node(worker_id, store, memory, arrivals, segments, fetcher, transport, card, metrics)

    async def _start_real(
        self, worker_id: WorkerId, store: FakeStore, num_pages: int, page_bytes: int, settings: DataPlaneSettings
    ) -> Node:
        memory = ArenaFiles(num_pages, page_bytes)
        self._closing.append(memory)
        metrics = WorkerMetrics()
        plane = await start_data_plane(
            settings,
            WorkerIdentity(worker_id=worker_id, epoch=WorkerEpoch(1), domain_id=DOMAIN),
            StoreShape(arena_paths=memory.paths, page_tokens=PAGE_TOKENS, page_bytes=page_bytes),
            catalogue=store,
            directory=self.directory,
            clock=time.monotonic,
            metrics=metrics,
        )
        return Node(
            worker_id,
            store,
            memory,
            plane.arrivals,
            plane.segments,
            plane.fetcher,
            plane.transport,
            plane.card,
            metrics,
            plane,
        )


def kv_bytes_per_token(page_bytes: int = PAGE_BYTES) -> int:
    return page_bytes // PAGE_TOKENS * NUM_RANKS


def remote(
    segment: LeasedSegment, source: Node, how: Source = Source.FETCH, *, keep: bool = True,
    compute_s: float | None = None,
) -> RemoteSegment:  # fmt: skip
    return RemoteSegment(
        key=segment.key,
        token_bytes=segment.token_bytes,
        source=how,
        from_worker=source.worker_id,
        keep=keep,
        compute_s=compute_s,
    )


async def settled(node: Node) -> None:
    """Until everything that was begun on a node is given back."""
    for _ in range(500):
        if node.store.is_clean and not node.fetcher.num_running:
            return
        await asyncio.sleep(0.01)


def request(number: int = 1) -> RequestId:
    return RequestId(f"request-{number}")
