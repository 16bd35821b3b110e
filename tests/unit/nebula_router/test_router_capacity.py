"""What the split controller learns from single prompts, and how it moves."""

import pytest
from support.split_case import (
    CHUNK,
    PRICE,
    STORE,
    chat,
    controller,
    lookup,
    lost_chunks,
    lost_segment,
    segment_key,
)

from nebula_protocol.events import SplitNow, SplitVerdict
from nebula_protocol.ids import PrefixKey, RemovalReason
from nebula_router.core.capacity import GhostHits, SplitController
from nebula_router.core.prompt_use import PromptUse, SegmentUse
from nebula_router.core.store_room import StoreRoom


def saved(split: SplitController, *steps: int) -> list[float]:
    return [round(split.saved_ratios()[step], 3) for step in steps]


# ---- what is learned ----


def test_nothing_is_learned_without_workers_or_without_stores() -> None:
    alone = SplitController(prefix_ratio=0.3, window_requests=1, max_entries=100)
    storeless = controller(prefix_ratio=0.3, store_tokens=0)
    for split in (alone, storeless):
        for _ in range(3):
            assert split.record_use(chat(1, 2)) == GhostHits()
        assert split.saved_ratios() == [0.0] * 129
        assert split.prefix_ratio == 0.3


def test_a_prefix_that_returns_would_be_a_hit_where_blocks_have_the_room() -> None:
    split = controller(window_requests=1_000)
    split.record_use(chat(1, 2, 3, 4, 5))
    split.record_use(chat(*range(10, 30)))
    split.record_use(chat(1, 2, 3, 4, 5))
    # 20 chunks lie above the first prompt's 5, of which half counts: 22.5 * 128 = 2,880 tokens, so 29 steps of 100.
    # 640 of 641 + 2,561 + 641 ms: 0.167, little less for what is older.
    assert saved(split, 28, 29, 128) == [0.0, 0.167, 0.167]


def test_the_device_tier_is_room_that_no_split_takes_away() -> None:
    split = controller(window_requests=1_000, device_tokens=1_880)
    split.record_use(chat(1, 2, 3, 4, 5))
    split.record_use(chat(*range(10, 30)))
    split.record_use(chat(1, 2, 3, 4, 5))
    # Groups are (12,800 + 1,880) * 1.25 / 128 = 143 tokens wide, so the depth is as before: 2,880 - 1,880 = 1,000.
    assert saved(split, 9, 10) == [0.0, 0.167]


def test_a_segment_that_returns_would_be_a_hit_where_segments_have_the_room() -> None:
    split = controller(window_requests=1_000)
    split.record_use(lookup(1, num_tokens=640))
    split.record_use(lookup(2, num_tokens=2_560))
    split.record_use(lookup(1, num_tokens=640))
    # 2,560 lie above and half of 640 counts: 2,880 tokens. At step 99 segments have 2,900, at step 100 only 2,800.
    assert saved(split, 0, 99, 100) == [0.167, 0.167, 0.0]


def test_tokens_that_either_class_could_serve_count_once_at_each_split() -> None:
    split = controller(window_requests=1_000)
    both = PromptUse(
        num_tokens=CHUNK + 1,
        chunk_tokens=CHUNK,
        chunks=(PrefixKey(1),),
        num_held_chunks=0,
        prefix_hit_tokens=0,
        segments=(SegmentUse(segment_key(1), 1, CHUNK + 1, is_held=False),),
    )
    split.record_use(both)
    split.record_use(both)
    # Of 129 tokens, 127 are the segment's and 128 the blocks', and either needs 64 tokens of room. At step 0 the
    # segment serves, from step 1 on the blocks; never both. One of two prompts, and the older weighs exp(-1 / 256) =
    # 0.996 of it: 127 / 129 / 1.996 = 0.493, 128 / 129 / 1.996 = 0.497.
    assert saved(split, 0, 1, 127, 128) == [0.493, 0.497, 0.497, 0.497]


def test_a_prefix_hit_is_worth_more_than_a_segment_hit_by_what_is_recomputed_and_loaded() -> None:
    split = controller(window_requests=1_000)
    split.record_use(lookup(1, num_tokens=1_000))
    price = PRICE.__class__(
        per_token_s=0.001, per_pair_s=0.0, load_s_per_token=0.0002, recompute_tokens=100, reused_ratio=0.5
    )
    split.set_fleet(StoreRoom(STORE, 0), price)
    split.record_use(lookup(1, num_tokens=1_000, held=[1]))
    # 900 tokens are loaded: half of them is computed again anyway, and loading takes 0.2 ms each: 450 - 180 = 270 ms of
    # two prompts of 1,002.
    assert saved(split, 0) == [0.135]


def test_a_segment_that_takes_longer_to_load_than_to_compute_saves_nothing() -> None:
    split = controller(window_requests=1_000)
    price = PRICE.__class__(
        per_token_s=0.001, per_pair_s=0.0, load_s_per_token=0.002, recompute_tokens=0, reused_ratio=1.0
    )
    split.set_fleet(StoreRoom(STORE, 0), price)
    split.record_use(lookup(1))
    split.record_use(lookup(1, held=[1]))
    assert saved(split, 0) == [0.0]


def test_a_segment_that_is_no_longer_than_what_is_recomputed_saves_nothing() -> None:
    for recompute_tokens in (CHUNK, CHUNK + 50):
        split = controller(window_requests=1_000)
        price = PRICE.__class__(
            per_token_s=0.001,
            per_pair_s=0.0,
            load_s_per_token=0.0,
            recompute_tokens=recompute_tokens,
            reused_ratio=1.0,
        )
        split.set_fleet(StoreRoom(STORE, 0), price)
        split.record_use(lookup(1))
        split.record_lost(lost_segment(1))
        assert split.record_use(lookup(1)) == GhostHits()
        assert saved(split, 0) == [0.0]


def test_a_segment_that_was_computed_although_it_was_held_says_nothing_about_room() -> None:
    split = controller(window_requests=1_000)
    split.record_use(lookup(1))
    split.record_use(lookup(1, barred=[1]))
    assert saved(split, 0, 64) == [0.0, 0.0]


def test_what_workers_had_before_the_router_started_is_a_hit_at_any_split() -> None:
    split = controller(window_requests=1_000)
    split.record_use(chat(1, hit_chunks=1))
    split.record_use(lookup(1, held=[1]))
    # 128 of 129 and 128 of 130: 256 / 259.
    assert saved(split, 0, 64, 128) == [0.988, 0.988, 0.988]


def test_entries_that_were_dropped_on_purpose_are_no_reason_for_more_room() -> None:
    split = controller(window_requests=1_000)
    split.record_use(chat(1))
    split.record_use(lookup(1))
    split.record_lost(lost_chunks(1, reason=RemovalReason.DROPPED))
    split.record_lost(lost_segment(1, reason=RemovalReason.HYGIENE))
    split.record_use(chat(1))
    split.record_use(lookup(1))
    assert saved(split, 0, 64, 128) == [0.0, 0.0, 0.0]


# ---- copies ----


def test_losses_above_the_depth_of_the_room_say_that_there_are_copies() -> None:
    split = controller(prefix_ratio=0.0, window_requests=1_000)
    for number in range(1, 26):
        split.record_use(lookup(number, num_tokens=256))
    # The whole store, 12,800 tokens, is the segments'. One is lost under 10 others, at 2,560 + 128 = 2,688 tokens.
    split.record_lost(lost_segment(15, num_tokens=12_800))
    # A loss of at least a quarter of the store counts in full: 12,800 / 2,688 tokens of room for each of depth.
    assert split._classes.segments.copies == pytest.approx(12_800 / 2_688)


def test_few_losses_change_what_is_known_of_copies_little() -> None:
    split = controller(prefix_ratio=0.0, window_requests=1_000)
    for number in range(1, 26):
        split.record_use(lookup(number, num_tokens=256))
    split.record_lost(lost_segment(15, num_tokens=320))
    # 320 of 3,200 tokens, a tenth: the tenth root.
    assert split._classes.segments.copies == pytest.approx((12_800 / 2_688) ** 0.1)


# ---- ghost hits ----


def test_a_prompt_without_ghosts_has_no_ghost_hits() -> None:
    split = controller()
    assert split.record_use(chat(1, 2)) == GhostHits()
    assert split.record_use(chat(1, 2, hit_chunks=2)) == GhostHits()


def test_ghosts_behind_the_hit_are_hits_of_the_prefix_class() -> None:
    split = controller()
    split.record_use(chat(1, 2, 3))
    split.record_lost(lost_chunks(2, 3))
    assert split.record_use(chat(1, 2, 3, hit_chunks=1)) == GhostHits(prefix_tokens=2 * CHUNK)
    # It is held again now.
    assert split.record_use(chat(1, 2, 3, hit_chunks=1)) == GhostHits()


def test_segments_that_nobody_has_any_more_are_hits_of_their_class() -> None:
    split = controller()
    split.record_use(lookup(1, 2))
    split.record_lost(lost_segment(1))
    split.record_lost(lost_segment(2))
    # The second came back without a prompt.
    assert split.record_use(lookup(1, 2, held=[2])) == GhostHits(segment_tokens=CHUNK)


def test_what_was_not_lost_for_want_of_room_is_no_ghost_hit() -> None:
    split = controller()
    split.record_use(chat(1))
    split.record_use(lookup(1))
    split.record_lost(lost_chunks(1, reason=RemovalReason.CLEARED))
    split.record_lost(lost_segment(1, reason=RemovalReason.DROPPED))
    assert split.record_use(chat(1)) == GhostHits()
    assert split.record_use(lookup(1)) == GhostHits()


def prompt_in_both_classes(*, is_held: bool = False) -> PromptUse:
    """Two chunks of blocks; all of the second is a segment."""
    return PromptUse(
        num_tokens=2 * CHUNK + 1,
        chunk_tokens=CHUNK,
        chunks=(PrefixKey(1), PrefixKey(2)),
        num_held_chunks=0,
        prefix_hit_tokens=0,
        segments=(SegmentUse(segment_key(1), CHUNK, 2 * CHUNK, is_held),),
    )


def test_blocks_of_a_segment_that_is_held_would_have_spared_nothing() -> None:
    split = controller()
    split.record_use(prompt_in_both_classes())
    split.record_lost(lost_chunks(1, 2))
    assert split.record_use(prompt_in_both_classes(is_held=True)) == GhostHits(prefix_tokens=CHUNK)


def test_tokens_of_two_ghosts_count_for_the_one_that_lacked_less_room() -> None:
    for more_used, hits in (
        (chat(*range(10, 60)), GhostHits(prefix_tokens=CHUNK, segment_tokens=CHUNK)),
        (lookup(*range(10, 60)), GhostHits(prefix_tokens=2 * CHUNK)),
    ):
        split = controller(window_requests=1_000)
        split.record_use(prompt_in_both_classes())
        split.record_lost(lost_chunks(1, 2))
        split.record_lost(lost_segment(1))
        # What is used in between pushes down the ghosts of its own class.
        split.record_use(more_used)
        assert split.record_use(prompt_in_both_classes()) == hits


# ---- moves ----


def test_the_split_is_looked_at_once_a_window() -> None:
    split = controller(prefix_ratio=0.9, window_requests=3)
    ratios = []
    for _ in range(13):
        split.record_use(lookup(1, num_tokens=12_800))
        ratios.append(split.prefix_ratio)
    # The segment lies at 6,400 of 12,800 tokens, far from 0.9: 0.1 / 32 for each of 3 requests. Of 6 requests 5 could
    # have been hits, which is more than chance: sqrt(5) standard errors. Of 3 it was 2.
    steps = [0.9] * 5 + [0.890625] * 3 + [0.88125] * 3 + [0.871875] * 2
    assert ratios == pytest.approx(steps)


def test_a_move_is_bounded_by_the_requests_of_the_window() -> None:
    for window_requests in (8, 64):
        split = controller(prefix_ratio=0.9, window_requests=window_requests)
        for _ in range(window_requests):
            split.record_use(lookup(1, num_tokens=12_800))
        assert split.prefix_ratio == pytest.approx(0.9 - window_requests * 0.1 / 32)


def test_the_split_goes_all_the_way_and_no_further() -> None:
    # Five prompts of 2,500 tokens that return in turn lie at 4 * 2,500 + 1,250 = 11,250 of 12,800; of 20 chunks, 2,560,
    # at 11,520.
    lookups = [lookup(number, num_tokens=2_500) for number in range(5)]
    chats = [chat(*range(number * 20, number * 20 + 20)) for number in range(5)]
    # Step 15 leaves segments 11,300; from step 116 on blocks have 11,600.
    for uses, end in ((lookups, 15 / 128), (chats, 116 / 128)):
        split = controller(window_requests=8)
        for number in range(160):
            split.record_use(uses[number % 5])
        assert split.prefix_ratio == pytest.approx(end, abs=0.05)


def test_a_move_says_what_it_was_for() -> None:
    split = controller(prefix_ratio=0.9, window_requests=10)
    assert split.now == SplitNow(prefix_ratio=0.9)
    for _ in range(10):
        split.record_use(lookup(1, num_tokens=6_400))
    move = split.now.last_move
    assert move is not None
    assert move == split.now.last_review
    assert (move.from_prefix_ratio, move.prefix_ratio) == (0.9, split.prefix_ratio)
    assert (move.verdict, move.num_requests, move.window_requests) == (SplitVerdict.MOVED, 10, 10)
    # Nine of ten requests could have been hits, all but 2 of 6,402 tokens, and older ones weigh a little less.
    assert move.gain_ratio == pytest.approx(0.9, abs=0.002)
    # Half of the segment's 6,400 tokens count as its depth: steps up to 96 leave that much to segments.
    assert (move.best_from_ratio, move.best_to_ratio) == (0.0, 96 / 128)


def test_a_review_tells_the_ghost_hits_of_its_own_window() -> None:
    split = controller(window_requests=2)
    split.record_use(lookup(1))
    split.record_use(chat(1))
    split.record_lost(lost_segment(1))
    split.record_lost(lost_chunks(1))
    split.record_use(lookup(1))
    split.record_use(chat(1))
    split.record_use(lookup(2))
    split.record_use(lookup(3))
    ghosts = [(review.ghost_prefix_tokens, review.ghost_segment_tokens) for review in split.take_reviews()]
    assert ghosts == [(0, 0), (CHUNK, CHUNK), (0, 0)]
    assert split.take_reviews() == []


def test_a_window_that_moves_nothing_leaves_the_last_move_in_sight() -> None:
    split = controller(prefix_ratio=0.9, window_requests=10)
    for _ in range(10):
        split.record_use(lookup(1, num_tokens=6_400))
    move = split.now.last_move
    while split.now.last_review == split.now.last_move:
        move = split.now.last_move
        for _ in range(10):
            split.record_use(lookup(1, num_tokens=6_400, held=[1]))
    assert split.now.last_move == move
    assert split.now.last_review is not None
    assert split.now.last_review.verdict is SplitVerdict.BEST_ALREADY
    assert split.now.last_review.from_prefix_ratio == split.now.last_review.prefix_ratio == split.prefix_ratio


def test_reviews_that_nobody_takes_are_bounded() -> None:
    split = controller(window_requests=1)
    for number in range(300):
        split.record_use(lookup(number))
    reviews = split.take_reviews()
    assert (len(reviews), reviews[-1].num_requests) == (256, 300)


def test_what_may_be_chance_moves_nothing() -> None:
    for num_requests, moves in ((4, False), (6, True)):
        split = controller(prefix_ratio=0.9, window_requests=1)
        for _ in range(num_requests):
            split.record_use(lookup(1, num_tokens=6_400))
        # Three hits are sqrt(3) standard errors, five are sqrt(5), and two are needed.
        assert (split.prefix_ratio < 0.9) == moves


def lookups_beside_new_chats(split: SplitController, num_new_chunks: int) -> None:
    """Two segments of 3,200 tokens that return, each with a chat that does not."""
    for number in range(160):
        split.record_use(lookup(1, 2, num_tokens=3_200, held=[1, 2] if number else []))
        first = 1_000 + number * num_new_chunks
        split.record_use(chat(*range(first, first + num_new_chunks)))


def test_a_class_that_is_known_to_earn_nothing_leaves_all_room_to_the_other() -> None:
    split = controller(window_requests=8)
    lookups_beside_new_chats(split, 4)
    # The segments lie at half of their 6,400, so up to step 96 nothing is lost. Thousands of tokens of blocks never
    # returned.
    assert split.prefix_ratio == 0.0


def test_segments_that_never_return_leave_all_room_to_blocks() -> None:
    split = controller(window_requests=8)
    for number in range(160):
        split.record_use(chat(1, 2, hit_chunks=2 if number else 0))
        split.record_use(lookup(1_000 + number, num_tokens=512))
    # Two chunks lie at 128 tokens, so from step 2 on nothing is lost.
    assert split.prefix_ratio == 1.0


def test_a_class_that_was_not_seen_yet_keeps_its_room() -> None:
    split = controller(window_requests=8)
    lookups_beside_new_chats(split, 0)
    # As above, but of blocks nothing is known. Step 64 keeps a third of 96 steps away from where segments are lost.
    assert split.prefix_ratio == 0.5


def test_while_nothing_is_short_of_room_the_split_stays() -> None:
    split = controller(prefix_ratio=0.4, window_requests=1)
    for _ in range(100):
        split.record_use(chat(1, 2, hit_chunks=2))
    # 256 tokens lie at 128: a hit from step 2 on. A third of 126 steps further is step 44; the split is at 51.
    assert split.prefix_ratio == 0.4


@pytest.mark.parametrize(("num_tokens", "moves"), [(100, True), (5, False)])
def test_a_gain_that_is_too_small_moves_nothing(num_tokens: int, moves: bool) -> None:
    split = controller(prefix_ratio=1.0, window_requests=1)
    for number in range(100):
        split.record_use(lookup(1, num_tokens=num_tokens, held=[1] if number else []))
        split.record_use(chat(*range(number * 80 + 1_000, number * 80 + 1_080)))
    # Without any room for segments all of one is lost, each time beside 80 * 128 = 10,240 tokens: 1 % or 0.05 %.
    assert (split.prefix_ratio < 1.0) == moves
