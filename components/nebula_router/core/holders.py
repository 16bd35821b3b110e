"""The index's columns: which scheduler has which bit."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nebula_protocol.card import WorkerCard
from nebula_protocol.hashing import salt_of
from nebula_protocol.ids import WorkerWithDpRank
from nebula_router.core.holder_table import WORD_BITS
from nebula_router.errors import RouterError


class TooManyWorkersError(RouterError):
    """A worker has no place in the index; raise `max_workers`."""

    def __init__(self, max_holders: int) -> None:
        super().__init__(f"the index has room for {max_holders} schedulers of workers and no more")
        self.max_holders = max_holders


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """One scheduler of a prefill worker. Valid until it is removed; its slot then goes to another one."""

    worker: WorkerWithDpRank
    slot: int
    word: int
    bit: np.uint64
    salt: int
    """Of its domain: prefix keys of different domains differ."""
    block_size_tokens: int
    has_store: bool
    """Blocks that leave the device tier may appear in the store."""


class Holders:
    """Gives each holder the lowest free slot, so that few words of bits suffice."""

    def __init__(self, max_holders: int) -> None:
        self._max_holders = max_holders
        self._by_worker: dict[WorkerWithDpRank, Holder] = {}
        self._freed_slots: list[int] = []
        self._num_slots = 0
        self.version = 0
        """Changes whenever a holder comes or goes."""

    def __len__(self) -> int:
        return len(self._by_worker)

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._by_worker.values())

    @property
    def num_words(self) -> int:
        return -(-self._num_slots // WORD_BITS)

    def get(self, worker: WorkerWithDpRank) -> Holder | None:
        return self._by_worker.get(worker)

    def sorted_workers(self) -> tuple[WorkerWithDpRank, ...]:
        return tuple(sorted(self._by_worker))

    def slots_of(self, workers: tuple[WorkerWithDpRank, ...]) -> list[int]:
        """
        Raises:
            KeyError: one of them is no holder.
        """
        return [self._by_worker[worker].slot for worker in workers]

    def add(self, worker: WorkerWithDpRank, card: WorkerCard) -> Holder:
        """
        Raises:
            TooManyWorkersError: all slots are taken.
        """
        slot = self._take_slot()
        holder = Holder(
            worker=worker,
            slot=slot,
            word=slot // WORD_BITS,
            bit=np.uint64(1 << slot % WORD_BITS),
            salt=salt_of(card.domain.domain_id),
            block_size_tokens=card.domain.block_size_tokens,
            has_store=card.store_capacity_tokens > 0,
        )
        self._by_worker[worker] = holder
        self.version += 1
        return holder

    def remove(self, holder: Holder) -> None:
        del self._by_worker[holder.worker]
        heapq.heappush(self._freed_slots, holder.slot)
        self.version += 1

    def _take_slot(self) -> int:
        if self._freed_slots:
            return heapq.heappop(self._freed_slots)
        if self._num_slots == self._max_holders:
            raise TooManyWorkersError(self._max_holders)
        self._num_slots += 1
        return self._num_slots - 1
