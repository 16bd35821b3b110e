"""Which part of a prompt the connector fills, and from what."""

from collections.abc import Sequence
from dataclasses import dataclass

from pic_worker.core.compute_work import Run, runs_between
from pic_worker.core.host_entry import HostBlock, HostSegment


@dataclass(frozen=True, slots=True)
class WantedSegment:
    """Tokens [start, end) of the prompt, and its entry in the store where there is one to use."""

    start: int
    end: int
    stored: HostSegment | None


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """Tokens [start, end) of the prompt come from a stored segment."""

    index: int
    """Of the wanted segment."""
    stored: HostSegment
    skip_tokens: int
    """Leading tokens of the segment that the prefix holds."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Claim:
    """[start, end) of a prompt: loaded prefix blocks first, then segments with gaps between them."""

    start: int
    """Tokens before it are in the device tier."""
    blocks_end: int
    """End of the prefix that comes from the store."""
    end: int
    blocks: tuple[HostBlock, ...]
    uses: tuple[SegmentUse, ...]
    """Ascending and disjoint, all at or behind `blocks_end`."""

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def gaps(self) -> list[Run]:
        """What is loaded from nowhere."""
        return runs_between(self.blocks_end, self.end, [Run(use.start, use.end) for use in self.uses])


def plan_claim(
    *,
    prompt_tokens: int,
    device_tokens: int,
    blocks: Sequence[HostBlock],
    block_size_tokens: int,
    segments: Sequence[WantedSegment],
) -> Claim:
    """What can be loaded behind the prefix in the device tier; of no tokens where there is nothing.

    The prefix is preferred to segments. At least the prompt's last token is left to the engine, whose logits choose the
    first answer token. The claim ends with the last token that is loaded.

    Args:
        device_tokens: length of the prefix in the device tier, in whole blocks.
        blocks: of the store, those that continue this prefix.
        segments: ascending and disjoint.
    """
    limit = prompt_tokens - 1
    room_blocks = max(0, limit - device_tokens) // block_size_tokens
    blocks = tuple(blocks[:room_blocks])
    blocks_end = device_tokens + len(blocks) * block_size_tokens
    uses: list[SegmentUse] = []
    for index, segment in enumerate(segments):
        start, end = max(segment.start, blocks_end), min(segment.end, limit)
        if segment.stored is not None and start < end:
            uses.append(SegmentUse(index, segment.stored, start - segment.start, start, end))
    end = uses[-1].end if uses else blocks_end
    return Claim(device_tokens, blocks_end, end, blocks, tuple(uses))
