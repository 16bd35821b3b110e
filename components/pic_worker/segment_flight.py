"""A remote segment on its way into this worker's store."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from nebula_protocol.ids import Origin, WorkerId
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from nebula_protocol.tokens import TOKEN_DTYPE
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.store_entry import SegmentKey


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """A segment of a plan that another worker has, or is going to have."""

    key: SegmentKey
    token_bytes: bytes
    source: Source
    """FETCH, JOIN or COMPUTE_AT: the last two are waited for."""
    from_worker: WorkerId
    keep: bool = True
    """False: the copy goes when the request has used it."""
    compute_s: float | None = None
    """What computing it here would add to the prompt; None: not known, so no fetch is too slow."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_bytes) // TOKEN_DTYPE.itemsize

    @property
    def is_joined(self) -> bool:
        return self.source is not Source.FETCH


@dataclass(frozen=True, slots=True)
class Brought:
    """The segment is in this worker's store, and stays there as long as it is held."""

    done: Source
    """LOCAL: it was there already."""
    origin: Origin


SegmentResult = Brought | FallbackReason


class Flight:
    """One transfer of one segment, for however many requests; its copy is pinned while one of them is there."""

    def __init__(
        self,
        wanted: RemoteSegment,
        decided: Callable[[SegmentResult], None],
        let_go: Callable[["Flight", LeaseId], None],
    ) -> None:
        """
        Args:
            decided: told the result, once.
            let_go: told when nobody needs the copy any more, with the lease that pins it.
        """
        self.wanted = wanted
        self.result: asyncio.Future[SegmentResult] = asyncio.get_running_loop().create_future()
        self.is_kept = wanted.keep
        self._decided = decided
        self._let_go = let_go
        self._num_users = 0
        self._lease_id: LeaseId | None = None

    @property
    def is_decided(self) -> bool:
        return self.result.done()

    def enter(self, wanted: RemoteSegment) -> None:
        """Another request waits for it."""
        self._num_users += 1
        # Kept as soon as one of them wants it kept.
        self.is_kept = self.is_kept or wanted.keep

    def leave(self) -> None:
        self._num_users -= 1
        self._release_unused()

    def arrive(self, done: Source, origin: Origin, lease_id: LeaseId) -> None:
        self._lease_id = lease_id
        self._decide(Brought(done, origin))
        self._release_unused()

    def fail(self, reason: FallbackReason) -> None:
        self._decide(reason)

    def _decide(self, result: SegmentResult) -> None:
        """The first word counts: who was told that it is late computes it."""
        if not self.result.done():
            self.result.set_result(result)
            self._decided(result)

    def _release_unused(self) -> None:
        if self._num_users == 0 and self._lease_id is not None:
            lease_id, self._lease_id = self._lease_id, None
            self._let_go(self, lease_id)
