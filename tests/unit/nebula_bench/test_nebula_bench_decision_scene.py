"""The scene of the decision benchmark: what workers hold and what they are asked."""

import pytest

from nebula_bench.decision.scene import SceneSpec, make_prompt, stored_chains
from nebula_bench.errors import SceneError
from nebula_protocol.annotations import parse_annotations

SPEC = SceneSpec(num_workers=3, num_entries=5_000)


@pytest.mark.parametrize(("num_workers", "num_entries"), [(2, 4_096), (3, 5_000), (64, 100_000)])
def test_the_workers_blocks_add_up_to_the_entries_and_are_shared_out_evenly(num_workers: int, num_entries: int) -> None:
    chains = stored_chains(SceneSpec(num_workers=num_workers, num_entries=num_entries))
    shares = [sum(chain.num_blocks for chain in own) for own in chains]
    assert sum(shares) == num_entries
    assert max(shares) - min(shares) <= 1


def test_no_two_blocks_have_one_name() -> None:
    names = [name for own in stored_chains(SPEC) for chain in own for name in chain.block_names()]
    assert len(set(names)) == len(names) == 5_000
    assert min(names) > 0
    assert max(names) < 2**63


def test_a_chain_has_the_tokens_of_its_blocks() -> None:
    short = stored_chains(SPEC)[1][-1]
    # 5000 blocks for 3 workers: 1667 for the second, which is 6 chains of 256 and one of 131.
    assert short.num_blocks == 131
    assert len(short.tokens(SPEC)) == 131 * 16


@pytest.mark.parametrize("num_tokens", [1_000, 4_000, 16_000, 32_000])
def test_a_prompt_has_its_length_and_its_spans_cover_it(num_tokens: int) -> None:
    prompt = make_prompt(SPEC, num_tokens)
    assert len(prompt.token_ids) == num_tokens
    assert prompt.spans[0][0] == 0
    assert prompt.spans[-1][1] == num_tokens
    assert all(before[1] == after[0] for before, after in zip(prompt.spans, prompt.spans[1:], strict=False))
    assert parse_annotations([prompt.annotation]).spans == prompt.spans


def test_a_prompt_begins_with_the_first_chain_goes_on_with_others_and_ends_new() -> None:
    chains = stored_chains(SPEC)
    prompt = make_prompt(SPEC, 4_000)
    # Half of 4000 is 7 whole segments of 256 tokens: 1792 tokens, 112 blocks of 16.
    assert prompt.prefix_blocks == 112
    assert prompt.token_ids[:1792] == chains[0][0].tokens(SPEC)[:1792].tolist()
    # Two fifths are 6 segments, from the other two workers in turn, each the second of a chain.
    held = [chains[worker][number].segment(SPEC, 1).tolist() for number in range(3) for worker in (1, 2)]
    assert [prompt.token_ids[start:end] for start, end in prompt.spans[7:13]] == held
    stored = {tuple(chain.segment(SPEC, at).tolist()) for own in chains for chain in own for at in range(64)}
    assert tuple(prompt.token_ids[-256:]) not in stored


def test_a_prompt_longer_than_what_is_held_is_refused() -> None:
    with pytest.raises(SceneError, match="no chain of the scene is long enough"):
        make_prompt(SPEC, 40_000)
    with pytest.raises(SceneError, match="two workers"):
        stored_chains(SceneSpec(num_workers=1))
