"""Pages of KV in shared memory."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from pic_worker.adapters.vllm.arena import Arena, PageShape
from pic_worker.core.arena_ids import Page
from pic_worker.errors import StartError

LAYERS, TOKENS, HEADS, DIMS = 3, 4, 2, 8
SHAPE = PageShape(LAYERS, TOKENS, HEADS, DIMS, torch.bfloat16)
# Keys and values of 3 layers, 4 tokens, 2 heads of 8, 2 bytes each.
PAGE_BYTES = 2 * 3 * 4 * 2 * 8 * 2
NUM_PAGES = 6


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(SHAPE, NUM_PAGES, is_pinned=False)
    yield arena
    arena.close()


def random_kv(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = torch.randn(2, num_tokens, HEADS, DIMS).to(torch.bfloat16)
    return keys, values


def test_it_takes_the_bytes_of_its_pages(arena: Arena) -> None:
    assert SHAPE.num_bytes == PAGE_BYTES
    assert arena.num_bytes == NUM_PAGES * PAGE_BYTES


def test_each_layer_keeps_its_own_keys_and_values(arena: Arena) -> None:
    rows = arena.rows_of([Page(5), Page(0), Page(2)], 10)
    written = [random_kv(10) for _ in range(LAYERS)]
    for layer, (keys, values) in enumerate(written):
        arena.write(layer, rows, keys, values)
    for layer, (keys, values) in enumerate(written):
        found_keys, found_values = arena.read(layer, rows)
        assert torch.equal(found_keys, keys)
        assert torch.equal(found_values, values)


def test_a_part_is_read_by_skipping_tokens(arena: Arena) -> None:
    pages = [Page(1), Page(4), Page(3)]
    keys, values = random_kv(11)
    arena.write(1, arena.rows_of(pages, 11), keys, values)
    found_keys, found_values = arena.read(1, arena.rows_of(pages, 5, skip_tokens=3))
    assert torch.equal(found_keys, keys[3:8])
    assert torch.equal(found_values, values[3:8])


def test_pages_do_not_touch_each_other(arena: Arena) -> None:
    keys, values = random_kv(TOKENS)
    arena.write(0, arena.rows_of([Page(2)], TOKENS), keys, values)
    for other in (Page(1), Page(3)):
        arena.write(0, arena.rows_of([other], TOKENS), *random_kv(TOKENS))
    assert torch.equal(arena.read(0, arena.rows_of([Page(2)], TOKENS))[0], keys)


def test_more_tokens_than_the_pages_hold_are_an_error(arena: Arena) -> None:
    with pytest.raises(IndexError):
        arena.rows_of([Page(0), Page(1)], 9)


def test_whoever_opens_its_path_sees_the_pages_in_their_order(arena: Arena) -> None:
    """A page is layer, key or value, token, head, dimension: layer 2's values begin after 5 times 4 tokens' rows."""
    keys, values = random_kv(TOKENS)
    arena.write(2, arena.rows_of([Page(3)], TOKENS), keys, values)
    with Path(arena.path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as seen:
        first = 3 * PAGE_BYTES + 5 * TOKENS * HEADS * DIMS * 2
        found = bytearray(seen[first : first + values.numel() * 2])
    assert torch.equal(torch.frombuffer(found, dtype=torch.bfloat16).view(values.shape), values)


def test_after_closing_its_path_is_gone_and_closing_again_is_harmless() -> None:
    arena = Arena(SHAPE, NUM_PAGES, is_pinned=False)
    path = Path(arena.path)
    assert path.exists()
    arena.close()
    arena.close()
    assert not path.exists()


def test_what_the_host_has_no_memory_for_is_refused_at_once() -> None:
    # 768 bytes a page times 2^40 pages.
    with pytest.raises(StartError, match="host memory"):
        Arena(SHAPE, 2**40, is_pinned=False)
