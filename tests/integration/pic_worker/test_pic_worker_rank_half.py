"""The rank half on a real engine: reading and writing its paged cache, forward passes outside of its batch, and what it
makes of its orders, against the engine's own prefill of the same prompt."""

from collections.abc import Sequence

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from support.rank_world import LayerKv, RankWorld, are_equal, largest_error, new_rank_half, tokens
from support.rank_world import rank_world as rank_world
from support.tiny_engine import BLOCK_TOKENS, MAX_BATCH_TOKENS, NUM_LAYERS
from support.tiny_engine import tiny_engine as tiny_engine

from pic_worker.adapters.vllm.model_check import check_keys_rotate
from pic_worker.adapters.vllm.orders import (
    BlockLoad,
    BlockSave,
    ChunkOrder,
    Injection,
    LoadOrder,
    SegmentSave,
    Selection,
    StepOrders,
)
from pic_worker.adapters.vllm.rotation import KeyRotation
from pic_worker.core.arena_ids import Page
from pic_worker.errors import StartError

# An engine starts with the first test, which takes minutes on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

FIRST, SECOND = tokens(100, seed=1), tokens(90, seed=2)
# Segments stand at 40 and 140 there, and at 140 and 50 here; none begins or ends with a page or block.
EARLIER_PROMPT = [*tokens(40, seed=3), *FIRST, *SECOND]
PROMPT = [*tokens(50, seed=4), *SECOND, *FIRST, *tokens(16, seed=5)]
# bf16 has 8 bits: sums of rounded products in another order differ by some of its last ones.
ROUNDING = 0.03
# A table of cosines in bf16 is off by up to 0.4 %, and a key by as much again.
BF16_TABLE = 0.02
FIRST_LAYERS = 2


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


def test_the_engines_keys_at_two_positions_differ_by_the_rotation(rank_world: RankWorld) -> None:
    approximation = rank_world.bound.approximation
    assert approximation is not None
    (block,) = rank_world.blocks(1)
    found = []
    for position in (10, 1500):
        approximation.forward.run_alone(77, position, block)
        found.append(rank_world.kv((block,), 0, 1))
    turn = approximation.rotation.turn(torch.tensor([1490]))
    for (near_keys, near_values), (far_keys, far_values) in zip(*found, strict=True):
        assert (turn.apply(near_keys) - far_keys).norm() < BF16_TABLE * far_keys.norm()
        assert (near_values - far_values).norm() < BF16_TABLE * far_values.norm()
        # Unturned, they are nowhere near.
        assert (near_keys - far_keys).norm() > 0.3 * far_keys.norm()


def test_a_model_whose_keys_do_not_follow_the_rotation_is_refused(rank_world: RankWorld) -> None:
    bound = rank_world.bound
    assert bound.approximation is not None
    other = KeyRotation(torch.full((16,), 0.01), is_neox=True, device=torch.device("cpu"))
    with pytest.raises(StartError, match="layer 0"):
        check_keys_rotate(bound.approximation.forward, bound.kv, other, max_positions=2048)


def save_segment(world: RankWorld, blocks: tuple[int, ...], start: int, end: int) -> tuple[Page, ...]:
    save = SegmentSave(world.save_id(), blocks, start, end, world.pages(end - start))
    world.half.save_segments(StepOrders(segment_saves=(save,)))
    report = world.half.take_report()
    assert report is not None
    assert report.saved == {save.save_id}
    return save.pages


@pytest.fixture
def injections(rank_world: RankWorld) -> tuple[Injection, ...]:
    """Both segments of the earlier prompt, for the places that they have in the prompt."""
    blocks = rank_world.engine.prefill(EARLIER_PROMPT)
    first = save_segment(rank_world, blocks, 40, 140)
    second = save_segment(rank_world, blocks, 140, 230)
    return (
        Injection(second, stored_position=140, skip_tokens=0, start=50, end=140),
        Injection(first, stored_position=40, skip_tokens=0, start=140, end=240),
    )


def run(world: RankWorld, load: LoadOrder, num_tokens: int) -> None:
    chunk = ChunkOrder(load.request_id, first=0, num_tokens=num_tokens, last=True, is_async=False)
    world.half.load(StepOrders(loads=(load,), chunks=(chunk,)))


def order(
    world: RankWorld,
    injections: tuple[Injection, ...],
    recompute: tuple[tuple[int, int], ...],
    selection: Selection | None = None,
    prompt: Sequence[int] = PROMPT,
) -> LoadOrder:
    return LoadOrder(
        request_id=world.name(),
        token_ids=tuple(prompt),
        block_ids=world.blocks(len(prompt)),
        start=0,
        end=len(prompt),
        injections=injections,
        recompute=recompute,
        selection=selection,
    )


def turned(world: RankWorld, layers: LayerKv, difference: int) -> LayerKv:
    approximation = world.bound.approximation
    assert approximation is not None
    turn = approximation.rotation.turn(torch.full((len(layers[0][0]),), difference))
    return [(turn.apply(keys), values) for keys, values in layers]


def test_recomputing_everything_gives_the_engines_own_kv_bit_for_bit(
    rank_world: RankWorld, injections: tuple[Injection, ...]
) -> None:
    load = order(rank_world, injections, recompute=((0, 256),))
    run(rank_world, load, 256)
    own = rank_world.kv(rank_world.engine.prefill(PROMPT), 0, 256)
    assert are_equal(rank_world.kv(load.block_ids, 0, 256), own)


def test_recomputing_everything_in_the_engines_chunks_gives_its_own_kv_bit_for_bit(rank_world: RankWorld) -> None:
    prompt = tokens(700, seed=6)
    load = order(rank_world, (), recompute=((0, 700),), prompt=prompt)
    # 700 = 256 + 256 + 188
    for first in range(0, 700, MAX_BATCH_TOKENS):
        num_tokens = min(MAX_BATCH_TOKENS, 700 - first)
        chunk = ChunkOrder(load.request_id, first, num_tokens, last=first + num_tokens == 700, is_async=True)
        rank_world.half.load(StepOrders(loads=(load,) if first == 0 else (), chunks=(chunk,)))
        assert rank_world.half.take_received() == ({load.request_id} if chunk.last else set())
    own = rank_world.kv(rank_world.engine.prefill(prompt), 0, 700)
    assert are_equal(rank_world.kv(load.block_ids, 0, 700), own)


def test_injected_keys_are_the_stored_ones_turned_to_their_new_positions(
    rank_world: RankWorld, injections: tuple[Injection, ...]
) -> None:
    load = order(rank_world, injections, recompute=((0, 50), (50, 66), (140, 156), (240, 256)))
    run(rank_world, load, 50 + 16 + 16 + 16)
    stored = rank_world.kv(rank_world.engine.prefill(EARLIER_PROMPT), 0, 230)
    second = [(keys[156:230], values[156:230]) for keys, values in stored]
    first = [(keys[56:140], values[56:140]) for keys, values in stored]
    # Moved by 50 - 140 and by 140 - 40 positions.
    assert are_equal(rank_world.kv(load.block_ids, 66, 140), turned(rank_world, second, -90))
    assert are_equal(rank_world.kv(load.block_ids, 156, 240), turned(rank_world, first, 100))


def test_recomputed_tokens_see_the_injected_ones(rank_world: RankWorld) -> None:
    """Injected from the prompt's own prefill, the context is the exact one: so must be what is computed in it."""
    blocks = rank_world.engine.prefill(PROMPT)
    own = rank_world.kv(blocks, 0, 256)
    injections = (
        Injection(save_segment(rank_world, blocks, 50, 140), stored_position=50, skip_tokens=0, start=50, end=140),
        Injection(save_segment(rank_world, blocks, 140, 240), stored_position=140, skip_tokens=0, start=140, end=240),
    )
    load = order(rank_world, injections, recompute=((0, 50), (50, 58), (140, 148), (240, 256)))
    run(rank_world, load, 50 + 8 + 8 + 16)
    assert largest_error(rank_world.kv(load.block_ids, 0, 256), own) < ROUNDING


def test_cacheblend_computes_the_tokens_again_whose_keys_deviate_most(
    rank_world: RankWorld, injections: tuple[Injection, ...]
) -> None:
    load = order(rank_world, injections, recompute=((0, 50), (240, 256)), selection=Selection(30))
    run(rank_world, load, 50 + 16 + 30)
    own = rank_world.kv(rank_world.engine.prefill(PROMPT), 0, 256)
    injected = order(rank_world, injections, recompute=())
    run(rank_world, injected, 0)
    reused = rank_world.kv(injected.block_ids, 0, 256)
    found = rank_world.kv(load.block_ids, 0, 256)
    deviation = (own[1][0].float() - reused[1][0].float()).square().sum((1, 2))[50:240]
    expected = {50 + int(index) for index in deviation.topk(30).indices}
    changed = (found[3][1] != reused[3][1]).any(dim=2).any(dim=1)[50:240].nonzero().flatten()
    assert {50 + int(index) for index in changed} == expected
    # The probed layers keep what the probe computed, for all tokens. Its steps have another shape than the engine's
    # own, so kernels may round the last bits otherwise.
    torch.testing.assert_close(found[:2], own[:2], rtol=1e-4, atol=1e-4)


def test_cacheblend_of_all_tokens_gives_the_engines_own_kv_bit_for_bit(
    rank_world: RankWorld, injections: tuple[Injection, ...]
) -> None:
    load = order(rank_world, injections, recompute=((0, 50), (240, 256)), selection=Selection(190))
    run(rank_world, load, 256)
    own = rank_world.kv(rank_world.engine.prefill(PROMPT), 0, 256)
    assert are_equal(rank_world.kv(load.block_ids, 0, 256), own)


def test_a_selection_does_not_change_between_chunks(rank_world: RankWorld, injections: tuple[Injection, ...]) -> None:
    whole = order(rank_world, injections, recompute=((0, 50), (240, 256)), selection=Selection(30))
    run(rank_world, whole, 96)
    parts = order(rank_world, injections, recompute=((0, 50), (240, 256)), selection=Selection(30))
    for first in range(0, 96, 24):
        chunk = ChunkOrder(parts.request_id, first, 24, last=first == 72, is_async=True)
        rank_world.half.load(StepOrders(loads=(parts,) if first == 0 else (), chunks=(chunk,)))
    assert rank_world.half.take_received() == {parts.request_id}
    assert largest_error(rank_world.kv(parts.block_ids, 0, 256), rank_world.kv(whole.block_ids, 0, 256)) < ROUNDING


def test_a_segment_whose_beginning_the_prefix_covers_is_injected_from_there_on(
    rank_world: RankWorld, injections: tuple[Injection, ...]
) -> None:
    whole = order(rank_world, injections, recompute=())
    run(rank_world, whole, 0)
    second, first = injections
    cut = Injection(second.pages, second.stored_position, skip_tokens=14, start=64, end=140)
    part = order(rank_world, (cut, first), recompute=())
    rank_world.write(part.block_ids, 0, untouched := rank_world.random_kv(64, seed=11))
    run(rank_world, part, 0)
    assert are_equal(rank_world.kv(part.block_ids, 0, 64), untouched)
    assert are_equal(rank_world.kv(part.block_ids, 64, 240), rank_world.kv(whole.block_ids, 64, 240))


def test_pages_hold_what_was_saved_last(rank_world: RankWorld) -> None:
    blocks, pages = rank_world.blocks(64), rank_world.pages(40)
    saves = []
    for seed in (21, 22):
        rank_world.write(blocks, 3, last := rank_world.random_kv(40, seed=seed))
        saves.append(SegmentSave(rank_world.save_id(), blocks, 3, 43, pages))
        rank_world.half.save_segments(StepOrders(segment_saves=(saves[-1],)))
    report = rank_world.half.take_report()
    assert report is not None
    assert report.saved == {save.save_id for save in saves}
    load = order(rank_world, (Injection(pages, stored_position=3, skip_tokens=0, start=3, end=43),), recompute=())
    run(rank_world, load, 0)
    assert are_equal(rank_world.kv(load.block_ids, 3, 43), last)


def test_a_block_comes_back_as_it_was(rank_world: RankWorld) -> None:
    blocks = rank_world.blocks(3 * BLOCK_TOKENS)
    rank_world.write(blocks, 0, kept := rank_world.random_kv(3 * BLOCK_TOKENS, seed=31))
    saves = [BlockSave(rank_world.save_id(), block, rank_world.pages(BLOCK_TOKENS)) for block in blocks]
    rank_world.half.save_blocks(StepOrders(block_saves=tuple(saves)))
    rank_world.half.take_report()
    load = LoadOrder(
        request_id=rank_world.name(),
        token_ids=tuple(PROMPT[: 3 * BLOCK_TOKENS]),
        block_ids=(new_blocks := rank_world.blocks(3 * BLOCK_TOKENS)),
        start=0,
        end=3 * BLOCK_TOKENS,
        block_loads=tuple(BlockLoad(save.pages, new) for save, new in zip(saves, new_blocks, strict=True)),
    )
    run(rank_world, load, 0)
    assert are_equal(rank_world.kv(new_blocks, 0, 3 * BLOCK_TOKENS), kept)


def test_a_load_that_is_given_up_is_received_once_and_forgotten(
    rank_world: RankWorld, injections: tuple[Injection, ...]
) -> None:
    load = order(rank_world, injections, recompute=((0, 50),))
    chunk = ChunkOrder(load.request_id, first=0, num_tokens=20, last=False, is_async=True)
    rank_world.half.load(StepOrders(loads=(load,), chunks=(chunk,)))
    assert rank_world.half.take_received() == set()
    rank_world.half.load(StepOrders(given_up=(load.request_id,)))
    assert rank_world.half.take_received() == {load.request_id}
    rank_world.half.load(StepOrders(given_up=(load.request_id, "unknown")))
    assert rank_world.half.take_received() == set()


def test_a_rank_for_prefix_blocks_alone_keeps_them_and_refuses_segments(
    rank_world: RankWorld, injections: tuple[Injection, ...]
) -> None:
    half = new_rank_half(rank_world.engine, pic=False)
    half.bind_runner(rank_world.engine.runner)
    half.save_blocks(StepOrders(block_saves=(BlockSave(rank_world.save_id(), 1, (Page(0), Page(1))),)))
    assert half.take_report() is not None
    with pytest.raises(StartError, match="prefix blocks alone"):
        half.load(StepOrders(loads=(order(rank_world, injections, recompute=()),)))
    half.shutdown()


def test_without_the_worker_class_the_first_order_says_what_is_missing(rank_world: RankWorld) -> None:
    half = new_rank_half(rank_world.engine)
    with pytest.raises(StartError, match="worker class"):
        half.save_blocks(StepOrders(block_saves=(BlockSave(rank_world.save_id(), 1, (Page(0), Page(1))),)))
