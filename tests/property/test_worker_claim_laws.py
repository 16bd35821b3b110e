"""Laws of claims: what is loaded and what is computed are all of the claim, once each."""

from hypothesis import given
from hypothesis import strategies as st

from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, Fusion, cacheblend, legolink
from nebula_protocol.ids import DomainId, EngineBlockHash, Origin, SegmentHash
from pic_worker.core.claim import Claim, WantedSegment, plan_claim
from pic_worker.core.host_entry import BlockName, HostBlock, HostSegment
from pic_worker.core.recompute import plan_recompute
from pic_worker.core.store_entry import SegmentKey

BLOCK_TOKENS = 4
KEY = SegmentKey(DomainId("d"), SegmentHash(bytes(16)))


@st.composite
def claims(draw: st.DrawFn) -> tuple[Claim, int]:
    """A claim of a random prompt, and the prompt's length."""
    prompt_tokens = draw(st.integers(1, 60))
    device_blocks = draw(st.integers(0, (prompt_tokens - 1) // BLOCK_TOKENS))
    cuts = sorted(draw(st.sets(st.integers(0, prompt_tokens), max_size=12)))
    segments = [
        WantedSegment(
            start, end, HostSegment(KEY, b"", end - start, Origin.ALONE, 0, ()) if draw(st.booleans()) else None
        )
        for start, end in zip(cuts[::2], cuts[1::2], strict=False)
    ]
    claim = plan_claim(
        prompt_tokens=prompt_tokens,
        device_tokens=device_blocks * BLOCK_TOKENS,
        blocks=[HostBlock(BlockName(EngineBlockHash(n), b""), (), False) for n in range(draw(st.integers(0, 16)))],
        block_size_tokens=BLOCK_TOKENS,
        segments=segments,
    )
    return claim, prompt_tokens


fusions = st.one_of(
    st.sampled_from([NO_FUSION, FULL_FUSION]),
    st.integers(0, 20).map(legolink),
    st.floats(0.01, 1).map(cacheblend),
)


@given(claims())
def test_a_claim_leaves_at_least_one_token_to_the_engine(drawn: tuple[Claim, int]) -> None:
    claim, prompt_tokens = drawn
    assert claim.start <= claim.blocks_end <= claim.end < prompt_tokens


@given(claims())
def test_loads_and_gaps_are_the_claim_once_each(drawn: tuple[Claim, int]) -> None:
    claim, _ = drawn
    covered = list(range(claim.start, claim.blocks_end))
    for use in claim.uses:
        covered += range(use.start, use.end)
    for gap in claim.gaps:
        covered += range(gap.start, gap.end)
    assert sorted(covered) == list(range(claim.start, claim.end))


@given(claims())
def test_a_claim_ends_with_a_loaded_token(drawn: tuple[Claim, int]) -> None:
    claim, _ = drawn
    assert claim.end == (claim.uses[-1].end if claim.uses else claim.blocks_end)


@given(claims())
def test_each_use_names_the_same_tokens_in_the_segment_and_the_prompt(drawn: tuple[Claim, int]) -> None:
    claim, _ = drawn
    for use in claim.uses:
        assert 0 <= use.skip_tokens < use.stored.num_tokens
        assert use.skip_tokens + use.end - use.start <= use.stored.num_tokens


@given(claims(), fusions)
def test_all_gaps_are_computed_and_no_prefix_block_is(drawn: tuple[Claim, int], fusion: Fusion) -> None:
    claim, _ = drawn
    recompute = plan_recompute(claim, fusion)
    computed = [position for run in recompute.runs for position in range(run.start, run.end)]
    assert computed == sorted(set(computed))
    assert {p for gap in claim.gaps for p in range(gap.start, gap.end)} <= set(computed)
    assert all(claim.blocks_end <= position < claim.end for position in computed)
    used_tokens = sum(use.end - use.start for use in claim.uses)
    gap_tokens = sum(gap.end - gap.start for gap in claim.gaps)
    assert gap_tokens + sum(recompute.use_tokens) == recompute.num_tokens <= gap_tokens + used_tokens
