"""Follows what requests have computed, and keeps segments of it."""

from nebula_protocol.ids import Origin
from pic_worker.adapters.vllm.engine_wire import PrefillKind
from pic_worker.adapters.vllm.orders import SegmentSave
from pic_worker.adapters.vllm.tracked_request import SegmentTrack, TrackedRequest
from pic_worker.core.block_mirror import BlockContent, BlockMirror
from pic_worker.core.compute_work import Run
from pic_worker.core.host_catalogue import HostCatalogue
from pic_worker.core.recompute import overlaps
from pic_worker.core.store_entry import StoredSegment


class TokenKeeper:
    def __init__(
        self, catalogue: HostCatalogue, mirror: BlockMirror, block_size_tokens: int, *, keeps_segments: bool
    ) -> None:
        self._catalogue = catalogue
        self._mirror = mirror
        self._block_size_tokens = block_size_tokens
        self._keeps_segments = keeps_segments

    def advance(self, tracked: TrackedRequest, computed_tokens: int) -> list[SegmentSave]:
        """The step computes the request up to `computed_tokens`: notes its full blocks, and what to save of it."""
        tracked.computed_tokens = computed_tokens
        self._record_blocks(tracked)
        saves: list[SegmentSave] = []
        for segment in tracked.segments:
            if not segment.is_settled and segment.plan.end <= computed_tokens:
                segment.is_settled = True
                save = self._save(tracked, segment)
                if save is not None:
                    saves.append(save)
        return saves

    def _record_blocks(self, tracked: TrackedRequest) -> None:
        block_hashes, block_ids = tracked.request.block_hashes, tracked.block_ids
        num_full = min(tracked.computed_tokens // self._block_size_tokens, len(block_hashes), len(block_ids))
        for index in range(tracked.num_recorded_blocks, num_full):
            block_id, block_hash = block_ids[index], block_hashes[index]
            is_injected = self._is_injected(tracked, index, block_id, block_hash)
            self._mirror.record(block_id, BlockContent(block_hash, is_injected))
        tracked.num_recorded_blocks = max(tracked.num_recorded_blocks, num_full)

    def _is_injected(self, tracked: TrackedRequest, index: int, block_id: int, block_hash: bytes) -> bool:
        size = self._block_size_tokens
        device_blocks = tracked.device_tokens // size
        if index < device_blocks:
            # Of unknown origin, it might be.
            return self._mirror.is_injected(block_id, block_hash) is not False
        claim = tracked.claim
        if claim is not None and index - device_blocks < len(claim.blocks):
            return claim.blocks[index - device_blocks].is_injected
        return overlaps(Run(index * size, (index + 1) * size), tracked.injected)

    def _save(self, tracked: TrackedRequest, segment: SegmentTrack) -> SegmentSave | None:
        order, plan = tracked.order, segment.plan
        if order is None or not self._keeps_segments or self._has_injected_prefix(tracked, segment):
            return None
        is_alone = order.kind is PrefillKind.ALONE
        # At the prompt's beginning it is its own prefix, which the prefix cache keeps.
        if plan.start == 0 and not is_alone:
            return None
        origin = Origin.ALONE if is_alone else Origin.IN_CONTEXT
        stored = StoredSegment(segment.key, segment.token_bytes, plan.end - plan.start, origin)
        reservation = self._catalogue.reserve_segment(stored, plan.start)
        if reservation is None:
            return None
        num_blocks = -(-plan.end // self._block_size_tokens)
        return SegmentSave(
            reservation.save_id, tuple(tracked.block_ids[:num_blocks]), plan.start, plan.end, reservation.pages
        )

    def _has_injected_prefix(self, tracked: TrackedRequest, segment: SegmentTrack) -> bool:
        """Whether some of it came with the prefix, in blocks with KV that is not of this context."""
        size = self._block_size_tokens
        claim = tracked.claim
        prefix_tokens = claim.blocks_end if claim is not None else tracked.device_tokens
        first, end = segment.plan.start // size, min(-(-segment.plan.end // size), prefix_tokens // size)
        return any(
            self._mirror.is_injected(tracked.block_ids[index], tracked.request.block_hashes[index]) is not False
            for index in range(first, end)
        )
