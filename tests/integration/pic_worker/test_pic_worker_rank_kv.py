"""Reading and writing vLLM's paged cache, and forward passes outside of its batch, on a real engine."""

import pytest
import torch
from support.rank_world import RankWorld, are_equal, largest_error, tokens
from support.tiny_engine import BLOCK_TOKENS, MAX_BATCH_TOKENS, NUM_LAYERS

pytestmark = pytest.mark.integration

FIRST_LAYERS = 2
# bf16 has 8 bits: sums of rounded products in another order differ by some of its last ones.
ROUNDING = 0.03


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1), (0, BLOCK_TOKENS), (31, 33), (5, 27), (32, 96), (1, 160), (63, 64), (64, 159)],
)
def test_what_is_written_to_a_range_is_read_back_bit_for_bit(rank_world: RankWorld, start: int, end: int) -> None:
    blocks = rank_world.blocks(160)
    written = rank_world.random_kv(end - start, seed=start)
    rank_world.write(blocks, start, written)
    assert are_equal(rank_world.kv(blocks, start, end), written)


def test_writing_a_range_leaves_its_neighbours_alone(rank_world: RankWorld) -> None:
    blocks = rank_world.blocks(96)
    before = rank_world.random_kv(96, seed=1)
    rank_world.write(blocks, 0, before)
    rank_world.write(blocks, 40, rank_world.random_kv(10, seed=2))
    around = [(0, 40), (50, 96)]
    for start, end in around:
        expected = [(keys[start:end], values[start:end]) for keys, values in before]
        assert are_equal(rank_world.kv(blocks, start, end), expected)


@pytest.mark.parametrize("num_tokens", [1, 33, MAX_BATCH_TOKENS, 600])
def test_a_forward_pass_of_all_positions_gives_the_engines_own_kv_bit_for_bit(
    rank_world: RankWorld, num_tokens: int
) -> None:
    prompt = tokens(num_tokens, seed=num_tokens)
    own_blocks, blocks = rank_world.engine.prefill(prompt), rank_world.blocks(num_tokens)
    forward = rank_world.bound.approximation
    assert forward is not None
    forward.forward.run(prompt, blocks, torch.arange(num_tokens))
    assert are_equal(rank_world.kv(blocks, 0, num_tokens), rank_world.kv(own_blocks, 0, num_tokens))


def test_scattered_positions_see_exactly_their_context(rank_world: RankWorld) -> None:
    prompt = tokens(200, seed=7)
    blocks = rank_world.blocks(200)
    rank_world.write(blocks, 0, own := rank_world.kv(rank_world.engine.prefill(prompt), 0, 200))
    positions = torch.tensor([0, 1, 2, 30, 31, 32, 33, 77, 120, 121, 150, 199])
    for first, last in [(0, 2), (30, 33), (77, 77), (120, 121), (150, 150), (199, 199)]:
        rank_world.write(blocks, first, rank_world.random_kv(last - first + 1, seed=first))
    approximation = rank_world.bound.approximation
    assert approximation is not None
    approximation.forward.run(prompt, blocks, positions)
    assert largest_error(rank_world.kv(blocks, 0, 200), own) < ROUNDING


def test_the_first_layers_alone_give_what_they_give_in_the_whole_model_and_touch_no_other(
    rank_world: RankWorld,
) -> None:
    prompt = tokens(200, seed=8)
    blocks = rank_world.blocks(200)
    rank_world.write(blocks, 0, other := rank_world.random_kv(200, seed=9))
    own = rank_world.kv(rank_world.engine.prefill(prompt), 0, 200)
    approximation = rank_world.bound.approximation
    assert approximation is not None
    approximation.forward.run(prompt, blocks, torch.arange(200), num_layers=FIRST_LAYERS)
    found = rank_world.kv(blocks, 0, 200)
    assert len(found) == NUM_LAYERS
    assert are_equal(found[:FIRST_LAYERS], own[:FIRST_LAYERS])
    assert are_equal(found[FIRST_LAYERS:], other[FIRST_LAYERS:])
