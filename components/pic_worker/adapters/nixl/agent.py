"""This worker's NIXL agent: its arenas registered once, other workers' read as they are needed."""

import asyncio
import secrets
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from nebula_protocol.ids import WorkerId
from pic_worker.adapters.nixl.progress_pace import agents_sleep_when_idle
from pic_worker.core.page_runs import copy_runs
from pic_worker.errors import PeerGoneError, StartError
from pic_worker.transport import PageMemory, SegmentMove

if TYPE_CHECKING:
    from nixl._api import nixl_agent

log = structlog.get_logger()

_HOST_MEMORY = "DRAM"
_FIRST_POLL_S, _LAST_POLL_S = 0.0001, 0.005
_REGISTERED_LIMIT = "NIXL cannot register {num_bytes} bytes of the KV store: {error}"


class NixlAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """What a source tells homes so that they can read its pages."""

    metadata: bytes
    addresses: tuple[int, ...]
    """Of each rank's first page, in the source's process."""


class AddressedPages(PageMemory, Protocol):
    """Page memory that NIXL can be told of."""

    def address(self, rank: int) -> int: ...


class NixlPages:
    """Thread-safe as far as it is used here: NIXL locks for itself."""

    def __init__(self, worker_id: WorkerId, memory: AddressedPages) -> None:
        """
        Raises:
            StartError: NIXL is not installed, has no UCX, or cannot register the memory.
        """
        self._memory = memory
        self._addresses = tuple(memory.address(rank) for rank in range(memory.num_ranks))
        self._agent = _make_agent(f"nebula-{worker_id}-{secrets.token_hex(8)}")
        num_bytes = memory.num_pages * memory.page_bytes
        try:
            regions = [(address, num_bytes, 0, "") for address in self._addresses]
            self._registered = self._agent.register_memory(regions, _HOST_MEMORY)
            self.attachment = msgspec.msgpack.encode(
                NixlAttachment(metadata=self._agent.get_agent_metadata(), addresses=self._addresses)
            )
        except Exception as error:  # NIXL's errors have no base of their own.
            raise StartError(_REGISTERED_LIMIT.format(num_bytes=num_bytes, error=error)) from error
        self._known: dict[bytes, str] = {}
        self._knowing = threading.Lock()
        self._num_reading = 0

    async def read(self, source_id: WorkerId, attachment: bytes, moves: Sequence[SegmentMove]) -> None:
        """One READ of all the moves' pages. When it ends, also cancelled, nothing is written to them any more.

        A read under way cannot be taken back: the bytes of a source that was frozen land when it goes on. So a
        cancellation waits until it is over; a second one, which only comes when the process ends, does not.

        Raises:
            PeerGoneError: the source is gone.
        """
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def run() -> None:
            error: PeerGoneError | None = None
            try:
                self._read(attachment, moves)
            except Exception as cause:  # As above, and the thread's last word.
                error = PeerGoneError(source_id, f"NIXL: {cause}")
            loop.call_soon_threadsafe(_settle, over, error)

        # A thread of its own that does not keep the process: one that waits for a frozen source holds up nobody.
        threading.Thread(target=run, name="nixl-read", daemon=True).start()
        self._num_reading += 1
        over.add_done_callback(self._read_over)
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError:
            await asyncio.wait((over,))
            raise

    def close(self) -> None:
        if self._num_reading:
            # What is still written to stays registered.
            log.warning("nixl_reads_in_doubt", num_reads=self._num_reading)
            return
        try:
            self._agent.deregister_memory(self._registered)
        except Exception as error:  # As above.
            log.warning("nixl_not_deregistered", error=str(error))

    def _read_over(self, over: "asyncio.Future[None]") -> None:
        self._num_reading -= 1
        if not over.cancelled():
            # Whoever waited may be gone.
            over.exception()

    # ---- in a thread ----

    def _read(self, attachment: bytes, moves: Sequence[SegmentMove]) -> None:
        source = msgspec.msgpack.decode(attachment, type=NixlAttachment)
        if len(source.addresses) != len(self._addresses):
            raise ValueError("another number of ranks")
        name = self._introduce(source.metadata)
        try:
            self._transfer(name, *self._descriptors(source.addresses, moves))
        except Exception:
            self._forget(source.metadata, name)
            raise

    def _transfer(self, name: str, here: list[tuple[int, int, int]], there: list[tuple[int, int, int]]) -> None:
        agent = self._agent
        handle = agent.initialize_xfer(
            "READ", agent.get_xfer_descs(here, _HOST_MEMORY), agent.get_xfer_descs(there, _HOST_MEMORY), name, b""
        )
        state = agent.transfer(handle)
        poll_s = _FIRST_POLL_S
        while state == "PROC":
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, _LAST_POLL_S)
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
        if state != "DONE":
            raise ValueError(f"the read ended as {state}")

    def _descriptors(
        self, addresses: Sequence[int], moves: Sequence[SegmentMove]
    ) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """(address, length, device) of each piece at home and at the source."""
        source_pages = [page for move in moves for page in move.source_pages]
        home_pages = [page for move in moves for page in move.home_pages]
        size = self._memory.page_bytes
        here: list[tuple[int, int, int]] = []
        there: list[tuple[int, int, int]] = []
        for own, other in zip(self._addresses, addresses, strict=True):
            for run in copy_runs(source_pages, home_pages):
                here.append((own + run.home_first * size, run.num_pages * size, 0))
                there.append((other + run.source_first * size, run.num_pages * size, 0))
        return here, there

    def _introduce(self, metadata: bytes) -> str:
        with self._knowing:
            name = self._known.get(metadata)
            if name is None:
                found: Any = self._agent.add_remote_agent(metadata)
                name = found.decode() if isinstance(found, bytes) else str(found)
                self._known[metadata] = name
            return name

    def _forget(self, metadata: bytes, name: str) -> None:
        with self._knowing:
            if self._known.pop(metadata, None) is not None:
                self._agent.remove_remote_agent(name)


def _make_agent(name: str) -> "nixl_agent":
    try:
        from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t
    except ImportError as error:
        raise StartError(f"transport nixl needs the packages nixl and nixl-cu12 or nixl-cu13: {error}") from error
    try:
        # Strict: the loop and the threads that read use it at the same time.
        sync = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        with agents_sleep_when_idle():
            return nixl_agent(name, nixl_agent_config(backends=["UCX"], sync_mode=sync))
    except Exception as error:  # As above.
        raise StartError(f"NIXL does not start: {error}") from error


def _settle(over: "asyncio.Future[None]", error: PeerGoneError | None) -> None:
    if over.done():
        return
    if error is None:
        over.set_result(None)
    else:
        over.set_exception(error)
