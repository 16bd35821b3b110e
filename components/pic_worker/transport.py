"""What moves segments between workers. TCP and NIXL are adapters of it; one suite of tests runs on both and a fake."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from nebula_protocol.data_plane import AskSegments, DataPlaneCard, Offers
from nebula_protocol.ids import WorkerId
from pic_worker.core.arena_ids import Page


class PageMemory(Protocol):
    """The arenas of all of this worker's ranks, mapped."""

    @property
    def num_ranks(self) -> int: ...

    @property
    def num_pages(self) -> int:
        """Of each rank."""
        ...

    @property
    def page_bytes(self) -> int:
        """Of each rank."""
        ...

    def view(self, rank: int, first: Page, num_pages: int) -> memoryview:
        """Pages side by side, writable, as bytes: no copy.

        Raises:
            IndexError: they are not all inside.
        """
        ...


@dataclass(frozen=True, slots=True)
class SegmentMove:
    """One offered segment's pages and where they go to: rank i's to rank i."""

    index: int
    source_pages: tuple[Page, ...]
    home_pages: tuple[Page, ...]


class Landed(Enum):
    """How a segment's bytes arrived."""

    INTACT = "intact"
    DAMAGED = "damaged"
    """They are not what the source had."""
    LEASE_ENDED = "lease_ended"
    """The source no longer had them, or not for sure, while they were copied."""


class Landing(Protocol):
    """Called once for each segment that is done, as soon as it is."""

    def __call__(self, index: int, landed: Landed) -> None: ...


class TransferSession(Protocol):
    """One question to one source."""

    def ask(self, ask: AskSegments) -> AsyncIterator[Offers]:
        """The answers as they are decided, checked against the question; ends when all is. Called once.

        Raises:
            PeerGoneError: the source is gone, stalls, or breaks the rules.
        """
        ...

    async def take(self, moves: Sequence[SegmentMove], landed: Landing) -> None:
        """Copies offered segments; several calls may run at the same time.

        However it ends, also cancelled: from then on nothing is written to the moves' home pages, and those that had
        landed are whole. After a failure or cancellation the session is of no use any more.

        Raises:
            PeerGoneError: as for `ask`; those that have not landed will not.
        """
        ...


class Transport(Protocol):
    """The home's side."""

    def open(self, source: DataPlaneCard) -> AbstractAsyncContextManager[TransferSession]:
        """A session; its end tells the source to let go of all that it holds for it.

        Raises:
            PeerGoneError: on entry, when the source cannot be reached or does not know the secret.
            PeerRefusedError: on entry, when the two do not fit together.
        """
        ...


class DataDirectory(Protocol):
    """Where the other workers' data planes are."""

    async def locate(self, worker_id: WorkerId, timeout_s: float) -> DataPlaneCard:
        """
        Raises:
            PeerGoneError: nobody of this name answers within `timeout_s`.
            PeerRefusedError: it copies nothing to others.
        """
        ...

    def forget(self, worker_id: WorkerId) -> None:
        """What is known of it turned out to be outdated."""
        ...
