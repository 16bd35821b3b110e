"""What is claimed of a prompt, and what of it is computed again."""

import pytest

from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, Fusion, cacheblend, legolink
from nebula_protocol.ids import DomainId, EngineBlockHash, Origin, SegmentHash
from pic_worker.core.arena_ids import Page
from pic_worker.core.claim import Claim, WantedSegment, plan_claim
from pic_worker.core.compute_work import Run
from pic_worker.core.host_entry import BlockName, HostBlock, HostSegment
from pic_worker.core.recompute import merge_runs, plan_recompute
from pic_worker.core.store_entry import SegmentKey

BLOCK_TOKENS = 4


def host_blocks(num_blocks: int) -> list[HostBlock]:
    return [HostBlock(BlockName(EngineBlockHash(n), bytes([n])), (Page(n),), False) for n in range(num_blocks)]


def wanted(start: int, end: int, *, is_there: bool = True) -> WantedSegment:
    key = SegmentKey(DomainId("d"), SegmentHash(bytes(16)))
    stored = HostSegment(key, b"", end - start, Origin.ALONE, 0, ()) if is_there else None
    return WantedSegment(start, end, stored)


def claim_of(
    *segments: WantedSegment, prompt_tokens: int = 40, device_tokens: int = 0, num_host_blocks: int = 0
) -> Claim:
    return plan_claim(
        prompt_tokens=prompt_tokens,
        device_tokens=device_tokens,
        blocks=host_blocks(num_host_blocks),
        block_size_tokens=BLOCK_TOKENS,
        segments=segments,
    )


def used(claim: Claim) -> list[tuple[int, int, int]]:
    return [(use.start, use.end, use.skip_tokens) for use in claim.uses]


def test_nothing_to_load_claims_nothing() -> None:
    claim = claim_of(wanted(8, 16, is_there=False), device_tokens=4)
    assert (claim.num_tokens, claim.gaps) == (0, [])


def test_a_claim_ends_with_the_last_loaded_token_and_takes_the_gaps_before_it() -> None:
    claim = claim_of(wanted(3, 9), wanted(12, 20), wanted(25, 30, is_there=False))
    assert (claim.start, claim.end) == (0, 20)
    assert claim.gaps == [Run(0, 3), Run(9, 12)]


def test_a_segment_at_the_beginning_and_its_neighbour_leave_no_gap() -> None:
    claim = claim_of(wanted(0, 9), wanted(9, 20))
    assert (used(claim), claim.gaps) == ([(0, 9, 0), (9, 20, 0)], [])


def test_the_last_token_is_never_claimed() -> None:
    assert used(claim_of(wanted(30, 40))) == [(30, 39, 0)]
    assert claim_of(wanted(39, 40)).num_tokens == 0


@pytest.mark.parametrize(("device_tokens", "num_host_blocks"), [(8, 0), (0, 2), (4, 1)])
def test_the_prefix_is_preferred_to_segments_in_either_tier(device_tokens: int, num_host_blocks: int) -> None:
    claim = claim_of(wanted(2, 8), wanted(8, 8 + 5), device_tokens=device_tokens, num_host_blocks=num_host_blocks)
    assert claim.blocks_end == 8
    assert used(claim) == [(8, 13, 0)]


def test_of_a_segment_that_the_prefix_covers_in_part_the_rest_is_used() -> None:
    assert used(claim_of(wanted(2, 13), device_tokens=8)) == [(8, 13, 6)]


def test_the_block_with_the_last_token_is_left_to_the_engine() -> None:
    # 8 tokens are two blocks of 4; the second one holds the last token.
    claim = claim_of(prompt_tokens=8, num_host_blocks=2)
    assert (claim.end, len(claim.blocks)) == (4, 1)


def test_a_prompt_with_one_token_left_claims_nothing() -> None:
    assert claim_of(wanted(8, 9), prompt_tokens=9, device_tokens=8).num_tokens == 0


@pytest.mark.parametrize(
    ("fusion", "runs", "selected_tokens"),
    [
        (NO_FUSION, [Run(0, 3), Run(9, 12)], 0),
        # The leading two of each are added to the gaps before them.
        (legolink(2), [Run(0, 5), Run(9, 14)], 0),
        (FULL_FUSION, [Run(0, 20)], 0),
        # A quarter of 6 and of 8 tokens, rounded up: 2 + 2.
        (cacheblend(0.25), [Run(0, 3), Run(9, 12)], 4),
    ],
)
def test_gaps_and_what_the_fusion_wants_are_computed(fusion: Fusion, runs: list[Run], selected_tokens: int) -> None:
    recompute = plan_recompute(claim_of(wanted(3, 9), wanted(12, 20)), fusion)
    assert (list(recompute.runs), recompute.selected_tokens) == (runs, selected_tokens)
    assert recompute.num_tokens == sum(run.end - run.start for run in runs) + selected_tokens


def test_attention_pairs_are_those_of_the_computed_runs() -> None:
    recompute = plan_recompute(claim_of(wanted(3, 9)), legolink(1))
    # Tokens 0 to 3 behind nothing: 4 * (0 + 4 / 2).
    assert recompute.attention_pairs == 8
    chosen = plan_recompute(claim_of(wanted(0, 8)), cacheblend(0.5))
    # Four tokens spread over [0, 8): 4 * 4.
    assert chosen.attention_pairs == 16


def test_runs_that_touch_become_one() -> None:
    assert merge_runs([Run(5, 7), Run(0, 2), Run(2, 3), Run(6, 9), Run(4, 4)]) == (Run(0, 3), Run(5, 9))
