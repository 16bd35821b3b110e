"""What the split controller is told of a prompt, from its layout and its receipt."""

import numpy as np
import pytest
from msgspec.structs import replace
from support.placement_case import layout_of, round_card, segment_hash
from support.router_replies import receipt_for
from support.router_world import CUTTER, body_of, decide, new_state

from nebula_protocol.cutter import cut_prompt
from nebula_protocol.hashing import accumulate_prefix, prefix_keys, salt_of
from nebula_protocol.ids import DomainId, RequestId, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import Estimate, Plan, SegmentPlan, Source
from nebula_protocol.receipt import Receipt
from nebula_router.core.prompt_use import PromptUse, SegmentKey

SPANS = ((100, 400), (400, 1_000), (1_000, 1_600))


def receipt_of(*sources: Source, prefix_hit_tokens: int = 0) -> Receipt:
    """Of a prompt of 1,700 tokens with these segments."""
    segments = tuple(
        SegmentPlan(start=start, end=end, segment_hash=segment_hash(index), source=source)
        for index, ((start, end), source) in enumerate(zip(SPANS, sources, strict=True))
    )
    plan = Plan(
        request_id=RequestId("r"),
        domain_id=DomainId("d"),
        target=WorkerWithDpRank(WorkerId(1)),
        segments=segments,
        prefix_hit_tokens=prefix_hit_tokens,
        wait_budget_s=0.0,
        estimate=Estimate(free_in_s=0.0, arrive_in_s=0.0, compute_s=0.0, completion_s=0.0),
    )
    return receipt_for(plan, 1_700, prefix_hit_tokens=prefix_hit_tokens)


def use_of(receipt: Receipt, *, best_prefix_tokens: int = 0, unknown: frozenset[int] = frozenset()) -> PromptUse:
    return PromptUse.of(
        layout_of(1_700, SPANS),
        receipt,
        domain_id=DomainId("d"),
        best_prefix_tokens=best_prefix_tokens,
        unknown_segments=unknown,
    )


def test_blocks_are_followed_by_the_last_of_each_whole_chunk() -> None:
    tokens = np.arange(1_700, dtype=np.uint32)
    layout = cut_prompt(tokens, CUTTER, block_size_tokens=16)
    use = PromptUse.of(
        layout,
        receipt_of(*[Source.COMPUTE] * 3),
        domain_id=DomainId("d"),
        best_prefix_tokens=0,
        unknown_segments=frozenset(),
    )
    keys = prefix_keys(accumulate_prefix(layout.block_hashes), salt_of("d"))
    # 1,700 tokens have 106 whole blocks, and these 13 whole chunks of 8.
    assert use.chunks == tuple(keys[7:106:8].tolist())
    assert len(use.chunks) == 13
    assert use.chunk_tokens == 128


def test_a_tenants_blocks_have_the_keys_of_the_workers_domain() -> None:
    for domain_id in ("d", "d/tenant"):
        use = PromptUse.of(
            layout_of(1_700, SPANS),
            receipt_of(*[Source.COMPUTE] * 3),
            domain_id=DomainId(domain_id),
            best_prefix_tokens=0,
            unknown_segments=frozenset(),
        )
        assert use.chunks == use_of(receipt_of(*[Source.COMPUTE] * 3)).chunks
        assert use.segments[0].key == SegmentKey(DomainId(domain_id), segment_hash(0))


def test_the_hit_is_what_the_worker_had_and_what_is_held_is_the_best_of_any() -> None:
    use = use_of(receipt_of(*[Source.COMPUTE] * 3, prefix_hit_tokens=300), best_prefix_tokens=640)
    assert use.prefix_hit_tokens == 300
    # Two whole chunks of the 300 tokens, five of the 640.
    assert use.num_hit_chunks == 2
    assert use.num_held_chunks == 5


def test_segments_are_held_unless_they_were_unknown() -> None:
    use = use_of(receipt_of(Source.LOCAL, Source.COMPUTE, Source.FETCH), unknown=frozenset({1}))
    assert [segment.is_held for segment in use.segments] == [True, False, True]
    assert [(segment.start, segment.end) for segment in use.segments] == list(SPANS)


def test_a_segment_that_was_computed_although_it_was_held_is_barred() -> None:
    use = use_of(receipt_of(Source.COMPUTE, Source.COMPUTE, Source.LOCAL), unknown=frozenset({1}))
    assert [segment.is_barred for segment in use.segments] == [True, False, False]


@pytest.mark.parametrize(("prefix_tokens", "is_barred"), [(299, True), (300, False)])
def test_a_segment_that_the_prefix_covers_is_not_barred(prefix_tokens: int, is_barred: bool) -> None:
    receipt = receipt_of(*[Source.COMPUTE] * 3)
    covered = replace(receipt.segments[0], prefix_tokens=prefix_tokens)
    use = use_of(replace(receipt, segments=(covered, *receipt.segments[1:])))
    assert use.segments[0].is_barred == is_barred


def test_a_decision_remembers_what_the_best_prefix_was() -> None:
    state = new_state(round_card(1), round_card(2))
    decided = decide(state, body_of(range(1_000)))
    assert decided.best_prefix_tokens == 0
    assert decided.layout.num_tokens == 1_000
