"""The router's one state: what a decision depends on, and what it leaves behind."""

from itertools import pairwise

import pytest
from support.placement_case import round_card, worker
from support.router_replies import receipt_for
from support.router_world import body_of, decide, known_workers, new_state, served, sources, spans, state_of

from nebula_protocol.codec import encode
from nebula_protocol.domain import Domain, tenant_domain
from nebula_protocol.events import PicEvent, StoreCleared, WorkerPicEvents
from nebula_protocol.ids import EventId, RequestId, WorkerEpoch, WorkerId
from nebula_protocol.plan import Source
from nebula_router.core.holders import TooManyWorkersError
from nebula_router.decide import RouterState
from nebula_router.errors import NoWorkerError
from nebula_router.request import RoutedRequest

PROMPT = list(range(100))
SPAN = spans((20, 80))
MARKED = body_of(PROMPT, annotations=[SPAN])
DOMAIN = round_card(1).domain.domain_id
PREFIX_TOKENS = 96
"""Whole blocks of 16 in 100 tokens."""
LONG = body_of(list(range(4_000)), annotations=[spans(*pairwise(range(0, 4_001, 1_000)))])


# ---- what a decision depends on ----


def test_a_decision_tells_what_it_was_made_of() -> None:
    decided = decide(new_state(round_card(1), round_card(2)), MARKED, attempt=3)
    decision = decided.decision
    assert (decision.request_id, decision.prompt_tokens, decision.attempt) == ("r", 100, 3)
    assert decision.plan is decided.plan
    assert [candidate.worker for candidate in decision.candidates] == [worker(1), worker(2)]
    assert decision.decision_us > 0
    assert decided.domain_id == decided.plan.domain_id == DOMAIN


@pytest.mark.parametrize(
    ("fusion", "source"),
    [("none", Source.LOCAL), ("legolink:16", Source.LOCAL), ("legolink:60", Source.COMPUTE), ("full", Source.COMPUTE)],
)
def test_reuse_is_planned_by_the_fusion_that_a_request_asks_for(fusion: str, source: Source) -> None:
    state = new_state(round_card(1))
    served(state, MARKED)
    elsewhere = [*range(1_000, 1_020), *PROMPT[20:]]
    decided = decide(state, body_of(elsewhere, annotations=[SPAN, f"nebula.fusion={fusion}"]))
    # The passage of 60 tokens is there, but where all of it is computed again it is of no use.
    assert sources(decided) == [source]


def test_a_decision_holds_no_token_ids() -> None:
    tokens = [123_456_789 + index for index in range(100)]
    wire = encode(decide(new_state(round_card(1)), body_of(tokens, annotations=[SPAN])).decision)
    # MessagePack writes such numbers as 4 bytes, big end first.
    assert not [token for token in tokens if token.to_bytes(4, "big") in wire or str(token).encode() in wire]


def test_without_workers_there_is_nobody() -> None:
    request = RoutedRequest.read(MARKED, RequestId("r"), 1_000)
    with pytest.raises(NoWorkerError, match="no prefill worker is known"):
        new_state().decide(request, excluded=frozenset(), attempt=1, now_s=0.0)


def test_when_all_workers_are_excluded_there_is_nobody() -> None:
    state = new_state(round_card(1), round_card(2))
    with pytest.raises(NoWorkerError, match="no prefill worker can take this prompt"):
        decide(state, MARKED, excluded=(1, 2))
    assert state.view.num_claims == 0


def test_an_excluded_worker_is_neither_target_nor_source() -> None:
    state = new_state(round_card(1), round_card(2))
    assert served(state, MARKED).plan.target == worker(1)
    decided = decide(state, MARKED, excluded=(1,))
    assert (decided.plan.target, sources(decided)) == (worker(2), [Source.COMPUTE])


def test_the_longest_context_of_the_workers_counts() -> None:
    state = new_state(round_card(1, context_tokens=50), round_card(2, context_tokens=200))
    assert state.context_tokens == 200
    assert decide(state, body_of(PROMPT)).plan.target == worker(2)


# ---- exact requests and tenants ----


def test_a_request_without_pic_has_no_segments_and_says_so() -> None:
    state = new_state(round_card(1))
    served(state, MARKED)
    decided = decide(state, body_of(PROMPT, annotations=[SPAN, "nebula.pic=off"]))
    assert (decided.plan.pic, decided.plan.segments) == (False, ())


def test_exact_requests_share_prefixes_with_each_other_only() -> None:
    state = new_state(round_card(1))
    exact = body_of(PROMPT, annotations=["nebula.pic=off"])
    served(state, body_of(PROMPT), "approximate")
    assert served(state, exact, "exact").plan.prefix_hit_tokens == 0
    assert decide(state, exact, "exact again").plan.prefix_hit_tokens == PREFIX_TOKENS
    assert decide(state, body_of(PROMPT), "approximate again").plan.prefix_hit_tokens == PREFIX_TOKENS


def test_a_deployment_without_pic_has_one_lineage_and_an_annotation_can_ask_for_more() -> None:
    state = new_state(round_card(1), pic=False)
    served(state, MARKED)
    decided = decide(state, body_of(PROMPT, annotations=["nebula.pic=off"]))
    assert (decided.plan.pic, decided.plan.prefix_hit_tokens) == (False, PREFIX_TOKENS)
    assert decide(state, body_of(PROMPT, annotations=[SPAN, "nebula.pic=on"])).plan.pic


@pytest.mark.parametrize("pic", ["nebula.pic=on", "nebula.pic=off"])
def test_tenants_share_nothing(pic: str) -> None:
    state = new_state(round_card(1))
    bodies = {
        salt: body_of(PROMPT, annotations=[SPAN, pic, *([f"nebula.salt={salt}"] if salt else [])])
        for salt in ("", "acme", "emca")
    }
    for salt, body in bodies.items():
        first = served(state, body, f"first of {salt}")
        assert first.plan.prefix_hit_tokens == 0
        assert first.plan.domain_id == tenant_domain(DOMAIN, salt)
        assert Source.LOCAL not in sources(first)
    # Each finds what is its own, the segment elsewhere too.
    for salt, body in bodies.items():
        assert decide(state, body, f"second of {salt}").plan.prefix_hit_tokens == PREFIX_TOKENS
    moved = body_of([*range(500, 510), *PROMPT[20:80]], annotations=[spans((10, 70)), "nebula.salt=acme", pic])
    assert sources(decide(state, moved, "moved")) == ([Source.LOCAL] if pic.endswith("on") else [])


# ---- what it leaves behind ----


def test_two_requests_at_once_are_placed_apart_and_what_the_first_computes_is_known_to_a_third() -> None:
    state = new_state(round_card(1), round_card(2))
    first = decide(state, body_of(list(range(2_000)), annotations=[spans((20, 1_980))]), "first")
    second = decide(state, body_of(list(range(5_000, 7_000))), "second")
    assert (first.plan.target, second.plan.target) == (worker(1), worker(2))
    assert first.unknown_segments == {0}
    moved = body_of([*range(9_000, 9_010), *range(20, 1_980)], annotations=[spans((10, 1_970))])
    assert decide(state, moved, "third").unknown_segments == set()


def test_a_failure_leaves_neither_work_nor_claims() -> None:
    state = new_state(round_card(1))
    decided = decide(state, MARKED, "first")
    assert decide(state, body_of([7] * 100), "queued").plan.estimate.free_in_s > 0
    state.record_failure(decided, 0.0)
    assert decide(state, MARKED, "again").plan.prefix_hit_tokens == 0


def test_helpers_get_their_segments_tokens_and_leave_nothing_when_they_fail() -> None:
    state = new_state(*map(round_card, (1, 2, 3)))
    decided = decide(state, LONG)
    assert {helper.worker for helper in decided.helpers} == {worker(2), worker(3)}
    for helper in decided.helpers:
        lengths = [num_tokens for _, num_tokens in helper.task.segments]
        assert len(helper.token_ids) == sum(lengths)
        assert (helper.task.for_request, helper.task.domain_id) == ("r", DOMAIN)
        state.record_helper_failure(helper.task.for_request, helper.worker, 0.0)
    state.record_failure(decided, 0.0)
    assert state.view.num_claims == 0
    assert {decide(state, LONG, "again", excluded=(other,)).plan.estimate.free_in_s for other in (1, 2)} == {0.0}


def test_helpers_are_busy_until_they_are_done() -> None:
    state = new_state(*map(round_card, (1, 2, 3)))
    decided = decide(state, LONG)
    state.record_receipt(decided, receipt_for(decided.plan, 4_000), 0.0)
    assert free_in_s(state, 2) > 0
    for helper in decided.helpers:
        state.record_helper_done(helper.task.for_request, helper.worker, 0.0)
    assert [free_in_s(state, worker_id) for worker_id in (1, 2, 3)] == [0, 0, 0]


def free_in_s(state: RouterState, worker_id: int) -> float:
    """As a request would find it that can only go there."""
    others = {1, 2, 3} - {worker_id}
    decided = decide(state, body_of([7] * 50), "probe", excluded=tuple(others))
    state.record_failure(decided, 0.0)
    return decided.plan.estimate.free_in_s


def test_copies_that_are_under_way_delay_further_ones_from_the_same_worker() -> None:
    state = new_state(*map(round_card, (1, 2, 3)))
    passages = [list(range(20, 2_020)), list(range(10_020, 12_020))]
    for number, passage in enumerate(passages):
        body = body_of([*range(20), *passage], annotations=[spans((20, 2_020))])
        stored = decide(state, body, f"stores {number}", excluded=(2, 3))
        state.record_receipt(stored, receipt_for(stored.plan, 2_020), 0.0)
    decide(state, body_of(range(50_000, 54_000)), "keeps it busy", excluded=(2, 3))
    mark = spans((1, 2_001))
    first, second = (
        decide(state, body_of([90_000 + number, *passage, 1], annotations=[mark]), f"wants {number}")
        for number, passage in enumerate(passages)
    )
    assert (sources(first), sources(second)) == ([Source.FETCH], [Source.FETCH])
    assert {first.plan.target, second.plan.target} == {worker(2), worker(3)}
    # 1 ms and 2,000 tokens at 0.01 ms; the second waits for the first 20 ms, its own 1 ms meanwhile.
    assert first.plan.estimate.arrive_in_s == pytest.approx(0.021)
    assert second.plan.estimate.arrive_in_s == pytest.approx(0.041)


def test_a_helper_that_is_done_has_what_it_was_asked_for() -> None:
    state = new_state(*map(round_card, (1, 2, 3)))
    decided = decide(state, LONG)
    for helper in decided.helpers:
        state.record_helper_done(helper.task.for_request, helper.worker, 0.0)
    keys = [segment_hash for helper in decided.helpers for segment_hash, _ in helper.task.segments]
    assert keys
    assert all(state.view.is_held_elsewhere(DOMAIN, key, decided.plan.target) for key in keys)
    assert Source.JOIN not in sources(decide(state, LONG, "next", excluded=(1,)))


def test_what_a_helper_is_about_to_compute_can_be_joined() -> None:
    state = new_state(*map(round_card, (1, 2, 3)))
    assert decide(state, LONG).plan.target == worker(1)
    assert Source.JOIN in sources(decide(state, LONG, "next", excluded=(1,)))


def test_what_comes_after_a_worker_was_removed_is_ignored() -> None:
    state = new_state(*map(round_card, (1, 2, 3)))
    decided = decide(state, LONG)
    for worker_id in (1, 2, 3):
        state.remove_worker(WorkerId(worker_id))
    state.record_receipt(decided, receipt_for(decided.plan, 4_000), 0.0)
    state.record_failure(decided, 0.0)
    state.record_helper_done(decided.helpers[0].task.for_request, decided.helpers[0].worker, 0.0)
    state.record_helper_failure(decided.helpers[1].task.for_request, decided.helpers[1].worker, 0.0)
    assert (state.view.num_entries, known_workers(state)) == (0, set())


# ---- workers come, go and restart ----


def test_a_worker_that_restarted_under_its_id_is_used_again_once_its_state_is_known() -> None:
    state = new_state(round_card(1), round_card(2))
    served(state, MARKED)
    restarted = WorkerPicEvents(
        worker_id=WorkerId(1), epoch=WorkerEpoch(2), events=(PicEvent(event_id=EventId(0), data=StoreCleared()),)
    )
    state.view.apply_pic_events(restarted, 0.0)
    assert decide(state, MARKED, "meanwhile").plan.target == worker(2)
    assert known_workers(state) == {2}
    state.apply_state(state_of(round_card(1, epoch=WorkerEpoch(2))), 0.0)
    decided = decide(state, MARKED, "then", excluded=(2,))
    assert (decided.plan.target, decided.plan.prefix_hit_tokens) == (worker(1), 0)


def test_a_receipt_of_another_process_ends_what_was_known_of_its_worker() -> None:
    state = new_state(round_card(1))
    decided = decide(state, MARKED)
    state.record_receipt(decided, receipt_for(decided.plan, 100, epoch=WorkerEpoch(2)), 0.0)
    with pytest.raises(NoWorkerError):
        decide(state, MARKED, "meanwhile")
    state.apply_state(state_of(round_card(1, epoch=WorkerEpoch(2))), 0.0)
    assert decide(state, MARKED, "then").plan.estimate.free_in_s == 0


def test_removing_a_worker_forgets_what_it_had_and_what_it_was_doing() -> None:
    state = new_state(round_card(1))
    served(state, MARKED, "done")
    decide(state, body_of(list(range(5_000, 9_000))), "running")
    state.remove_worker(WorkerId(1))
    assert (known_workers(state), state.view.num_entries, state.context_tokens) == (set(), 0, 0)
    state.apply_state(state_of(round_card(1)), 0.0)
    decided = decide(state, MARKED, "then")
    assert (decided.plan.prefix_hit_tokens, decided.plan.estimate.free_in_s) == (0, 0.0)


def test_a_state_that_is_asked_again_keeps_the_work_of_its_worker() -> None:
    state = new_state(round_card(1))
    decide(state, body_of(list(range(5_000, 9_000))), "running")
    state.apply_state(state_of(round_card(1)), 0.0)
    # 4,000 tokens at 0.1 ms, and 10 ms for the step.
    assert decide(state, MARKED).plan.estimate.free_in_s == pytest.approx(0.410)


def test_only_the_largest_domain_serves_and_its_cards_count() -> None:
    other = Domain(model="next model", block_size_tokens=32)
    state = new_state(
        round_card(1, domain=other, context_tokens=64_000), round_card(2), round_card(3, context_tokens=40_000)
    )
    assert known_workers(state) == {2, 3}
    assert (state.block_size_tokens, state.context_tokens) == (16, 40_000)
    assert decide(state, MARKED).plan.domain_id == DOMAIN
    state.remove_worker(WorkerId(2))
    state.apply_state(state_of(round_card(4, domain=other)), 0.0)
    assert (known_workers(state), state.block_size_tokens, state.context_tokens) == ({1, 4}, 32, 64_000)
    assert decide(state, MARKED).plan.domain_id == other.domain_id


def test_each_rank_of_a_data_parallel_worker_is_a_place_of_its_own() -> None:
    state = new_state(round_card(1, dp_size=2))
    long = [list(range(start, start + 2_000)) for start in (0, 10_000)]
    targets = [decide(state, body_of(tokens), str(tokens[0])).plan.target for tokens in long]
    assert [(target.worker_id, target.dp_rank) for target in targets] == [(1, 0), (1, 1)]


def test_a_worker_beyond_the_bound_is_refused_and_the_others_go_on() -> None:
    state = new_state(round_card(1), max_workers=1)
    with pytest.raises(TooManyWorkersError):
        state.apply_state(state_of(round_card(2)), 0.0)
    assert decide(state, MARKED).plan.target == worker(1)
