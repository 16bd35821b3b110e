"""A prompt's blocks in runs that are a prefix hit from the same room on."""

from collections.abc import Iterator
from itertools import groupby
from math import inf
from typing import NamedTuple

from nebula_protocol.ids import PrefixKey
from nebula_router.core.ghost import UNKNOWN
from nebula_router.core.prompt_use import PromptUse
from nebula_router.core.reuse_class import ReuseClass


class PrefixRun(NamedTuple):
    """Tokens [start, end) of the prompt."""

    start: int
    end: int
    room_tokens: float
    """Room for prefix blocks that makes them a hit; infinite where none does."""
    is_hit: bool
    is_ghost: bool
    """They would have made the hit longer, had not room been lacking."""

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


def find_runs(blocks: ReuseClass[PrefixKey], use: PromptUse) -> list[PrefixRun]:
    """Runs that together are all tokens but the prompt's last, which is computed in any case."""
    runs = list(_known_runs(blocks, use))
    end = use.num_tokens - 1
    if runs and not runs[-1].is_hit:
        # It would end somewhere in the next chunk.
        runs[-1] = runs[-1]._replace(end=runs[-1].end + use.chunk_tokens // 2)
    runs.append(PrefixRun(runs[-1].end if runs else 0, end, inf, is_hit=False, is_ghost=False))
    return [run._replace(end=min(run.end, end)) for run in runs if run.start < min(run.end, end)]


def _known_runs(blocks: ReuseClass[PrefixKey], use: PromptUse) -> Iterator[PrefixRun]:
    marks = blocks.ghosts.marks_of(use.chunks)
    room_tokens, end = 0.0, 0
    for mark, group in groupby(marks[: use.num_hit_chunks]):
        if mark != UNKNOWN:
            # Else the worker has known it for longer than this list does: a hit without any room.
            room_tokens = max(room_tokens, blocks.room_of(mark))
        start, end = end, end + len(list(group)) * use.chunk_tokens
        yield PrefixRun(start, end, room_tokens, is_hit=True, is_ghost=False)
    yield PrefixRun(end, use.prefix_hit_tokens, room_tokens, is_hit=True, is_ghost=False)
    if use.num_held_chunks > use.num_hit_chunks:
        # Another worker has more of the prefix: not room would have helped, but another placement.
        return
    is_ghost = True
    for mark, group in groupby(marks[use.num_hit_chunks :]):
        if mark == UNKNOWN:
            return
        room_tokens = max(room_tokens, blocks.room_of(mark))
        is_ghost = is_ghost and blocks.ghosts.is_ghost(mark)
        begin = max(end, use.prefix_hit_tokens)
        end += len(list(group)) * use.chunk_tokens
        yield PrefixRun(begin, end, room_tokens, is_hit=False, is_ghost=is_ghost)
