"""A prompt's blocks in runs: hits, ghosts behind them, and what nobody has known."""

from math import inf

import pytest

from nebula_protocol.ids import PrefixKey
from nebula_router.core.prefix_runs import PrefixRun, find_runs
from nebula_router.core.prompt_use import PromptUse
from nebula_router.core.reuse_class import ReuseClass

CHUNK_TOKENS = 128
STORE_TOKENS = 102_400.0


def blocks_with(*chunks: int) -> ReuseClass[PrefixKey]:
    """Groups are 102,400 * 1.25 / 128 = 1,000 tokens wide, so these chunks share one: half of it is their depth."""
    blocks: ReuseClass[PrefixKey] = ReuseClass(max_entries=1_000)
    blocks.set_room(store_tokens=STORE_TOKENS, most_tokens=STORE_TOKENS)
    blocks.ghosts.use({PrefixKey(chunk): 2_000.0 / len(chunks) for chunk in chunks})
    return blocks


def prompt(*chunks: int, num_tokens: int, hit_tokens: int = 0, num_held_chunks: int = 0) -> PromptUse:
    return PromptUse(
        num_tokens=num_tokens,
        chunk_tokens=CHUNK_TOKENS,
        chunks=tuple(map(PrefixKey, chunks)),
        num_held_chunks=max(num_held_chunks, hit_tokens // CHUNK_TOKENS),
        prefix_hit_tokens=hit_tokens,
        segments=(),
    )


def run(start: int, end: int, room_tokens: float, *, is_hit: bool = False, is_ghost: bool = False) -> PrefixRun:
    return PrefixRun(start, end, room_tokens, is_hit, is_ghost)


def test_a_prompt_that_nobody_knew_is_one_run_that_no_room_makes_a_hit() -> None:
    assert find_runs(blocks_with(7), prompt(1, 2, num_tokens=300)) == [run(0, 299, inf)]


def test_a_prompt_without_whole_chunks_is_one_run() -> None:
    assert find_runs(blocks_with(7), prompt(num_tokens=100)) == [run(0, 99, inf)]


def test_a_hit_is_a_run_that_ends_where_the_worker_said() -> None:
    blocks = blocks_with(1, 2)
    # Two chunks are 256 tokens; the hit goes 44 further, from the same room on.
    assert find_runs(blocks, prompt(1, 2, 3, num_tokens=500, hit_tokens=300)) == [
        run(0, 256, 1_000.0, is_hit=True),
        run(256, 300, 1_000.0, is_hit=True),
        run(300, 499, inf),
    ]


def test_a_hit_that_this_list_never_saw_needs_no_room() -> None:
    assert find_runs(blocks_with(7), prompt(1, 2, num_tokens=300, hit_tokens=256)) == [
        run(0, 256, 0.0, is_hit=True),
        run(256, 299, inf),
    ]


def test_ghosts_behind_the_hit_are_a_run_of_their_own() -> None:
    blocks = blocks_with(1, 2, 3)
    blocks.ghosts.lose([PrefixKey(2), PrefixKey(3)])
    # The ghosts' chain ends somewhere in the next chunk: half a chunk further than is known.
    assert find_runs(blocks, prompt(1, 2, 3, 4, num_tokens=513, hit_tokens=128)) == [
        run(0, 128, 1_000.0, is_hit=True),
        run(128, 448, 1_000.0, is_ghost=True),
        run(448, 512, inf),
    ]


def test_a_ghost_behind_one_that_nobody_knew_would_have_been_no_hit() -> None:
    blocks = blocks_with(1, 3)
    blocks.ghosts.lose([PrefixKey(3)])
    assert find_runs(blocks, prompt(1, 2, 3, num_tokens=500, hit_tokens=128)) == [
        run(0, 128, 1_000.0, is_hit=True),
        run(128, 499, inf),
    ]


def test_behind_blocks_that_no_event_said_to_be_lost_nothing_is_a_ghost() -> None:
    blocks = blocks_with(1, 2, 3)
    blocks.ghosts.lose([PrefixKey(3)])
    # A crash took the second chunk: more room would have kept all the same what is asked for again and again.
    assert find_runs(blocks, prompt(1, 2, 3, num_tokens=385, hit_tokens=128)) == [
        run(0, 128, 1_000.0, is_hit=True),
        run(128, 256, 1_000.0),
        run(256, 384, 1_000.0),
    ]


def test_where_another_worker_has_more_of_the_prefix_room_would_not_have_helped() -> None:
    blocks = blocks_with(1, 2, 3)
    assert find_runs(blocks, prompt(1, 2, 3, num_tokens=500, hit_tokens=128, num_held_chunks=3)) == [
        run(0, 128, 1_000.0, is_hit=True),
        run(128, 499, inf),
    ]


def test_a_block_needs_the_room_of_all_before_it() -> None:
    blocks = blocks_with(1)
    blocks.ghosts.use({PrefixKey(2): 2_000.0})
    # The second was used later and lies at 1,000, the first below it at 2,000 + 1,000.
    runs = find_runs(blocks, prompt(1, 2, num_tokens=257, hit_tokens=256))
    assert runs == [run(0, 128, 3_000.0, is_hit=True), run(128, 256, 3_000.0, is_hit=True)]


def test_copies_on_several_workers_take_room_each() -> None:
    blocks = blocks_with(1)
    blocks.copies = 2.0
    assert find_runs(blocks, prompt(1, num_tokens=129, hit_tokens=128))[0].room_tokens == 2_000.0


@pytest.mark.parametrize("num_tokens", [1, 2, 128, 129, 200, 256, 257, 300])
def test_the_runs_are_all_tokens_but_the_last_without_gaps(num_tokens: int) -> None:
    blocks = blocks_with(1, 2)
    blocks.ghosts.lose([PrefixKey(2)])
    runs = find_runs(blocks, prompt(1, 2, num_tokens=num_tokens, hit_tokens=min(128, num_tokens - 1)))
    assert sum(one.num_tokens for one in runs) == num_tokens - 1
    assert [one.start for one in runs[1:]] == [one.end for one in runs[:-1]]
