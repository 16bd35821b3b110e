"""Helper work's way through the engine: segments computed alone, each from position 0, and stored."""

from dataclasses import dataclass

from nebula_protocol.ids import Origin
from pic_worker.core.compute_work import ComputeRuns, ComputeWork, Run
from pic_worker.core.prefix_cache import PrefixCache
from pic_worker.core.request_state import HelperState
from pic_worker.core.segment_shelf import SegmentShelf
from pic_worker.core.segment_source import Produced
from pic_worker.core.store_entry import SegmentKey


@dataclass(frozen=True, slots=True)
class HelperPrefill:
    prefix: PrefixCache
    shelf: SegmentShelf

    def begin(self, state: HelperState) -> None:
        """Announces the segments that are missing as coming."""
        for index in self._missing(state):
            self._register(state, state.segment_key(index))

    def admit(self, state: HelperState, now_s: float) -> bool:
        """Its turn: takes room for the segments that are still missing.

        False while it does not fit, or while an earlier request here is about to store one of them.
        """
        indices = self._missing(state)
        if any(
            self.shelf.in_flight.is_coming_before(state.segment_key(index), state.arrival_order) for index in indices
        ):
            return False
        lengths = [state.request.segments[index][1] for index in indices]
        num_blocks = -(-sum(lengths) // self.prefix.block_size_tokens)
        if not self.prefix.pool.can_allocate((), num_blocks):
            return False
        state.table = self.prefix.admit_private(num_blocks)
        state.to_compute = indices
        state.work = ComputeWork(ComputeRuns([Run(0, length) for length in lengths]))
        keys = [state.segment_key(index) for index in indices]
        for key in keys:
            self._register(state, key)
        for key in [key for key in state.producing if key not in keys]:
            self._stop_producing(state, key, now_s)
        return True

    def produced(self, state: HelperState) -> dict[SegmentKey, Produced]:
        """Segments that are stored when all shares given so far are computed."""
        finished = state.to_compute[state.num_stored : state.work.runs.num_finished]
        return {
            state.segment_key(index): Produced(state.segment_token_bytes(index), Origin.ALONE) for index in finished
        }

    def progress(self, state: HelperState, now_s: float) -> bool:
        """A step with the helper in it is done. Returns whether all its segments are."""
        runs = state.work.runs
        while state.num_stored < runs.num_finished:
            index = state.to_compute[state.num_stored]
            state.num_stored += 1
            key = state.segment_key(index)
            self.shelf.put(key, state.segment_token_bytes(index), Origin.ALONE, now_s)
            self._stop_producing(state, key, now_s)
        return runs.frontier is None

    def release(self, state: HelperState, now_s: float) -> None:
        """Frees all that the helper work holds, in any phase."""
        for key in list(state.producing):
            self._stop_producing(state, key, now_s)
        if state.table is not None:
            self.prefix.pool.release(state.table)
            state.table = None

    def _is_here(self, state: HelperState, index: int) -> bool:
        return self.shelf.find(state.segment_key(index), state.segment_token_bytes(index)) is not None

    def _missing(self, state: HelperState) -> list[int]:
        """Indices of the segments that are not in the store, each content once."""
        seen: set[SegmentKey] = set()
        missing: list[int] = []
        for index in range(len(state.request.segments)):
            key = state.segment_key(index)
            if key not in seen and not self._is_here(state, index):
                missing.append(index)
            seen.add(key)
        return missing

    def _register(self, state: HelperState, key: SegmentKey) -> None:
        if key not in state.producing:
            state.producing.append(key)
            self.shelf.begin(key, state.arrival_order)

    def _stop_producing(self, state: HelperState, key: SegmentKey, now_s: float) -> None:
        state.producing.remove(key)
        self.shelf.end(key, state.arrival_order, now_s)
