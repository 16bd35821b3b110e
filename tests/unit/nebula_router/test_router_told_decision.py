"""What a decision tells its readers beside the plan."""

from support.placement_case import round_card
from support.router_replies import receipt_for
from support.router_world import body_of, decide, new_state

from nebula_protocol.codec import decode, encode
from nebula_protocol.events import Decision, SplitNow

BODY = body_of(range(1_000))


def test_a_decision_tells_eight_candidates_of_all_workers() -> None:
    state = new_state(*map(round_card, range(1, 11)))
    told = decide(state, BODY).decision
    assert (len(told.candidates), told.num_workers) == (8, 10)
    assert told.candidates[0].worker == told.plan.target
    assert told.candidates[0].estimate == told.plan.estimate
    assert all(candidate.score_s is not None for candidate in told.candidates)


def test_without_readers_no_candidates_are_collected() -> None:
    state = new_state(round_card(1), round_card(2), publish_decisions=False)
    assert decide(state, BODY).decision.candidates == ()
    exact = body_of(range(1_000), annotations=["nebula.pic=off"])
    assert decide(state, exact, "exact").decision.candidates == ()


def test_an_exact_request_is_told_with_its_candidates_too() -> None:
    state = new_state(round_card(1), round_card(2))
    told = decide(state, body_of(range(1_000), annotations=["nebula.pic=off"])).decision
    assert len(told.candidates) == 2
    assert not told.plan.pic


def test_a_worker_that_the_client_chose_is_told_as_such() -> None:
    state = new_state(round_card(1), round_card(2))
    body = {**BODY, "routing": {"prefill_worker_id": 2}}
    assert decide(state, body, "bound").decision.is_bound
    assert not decide(state, body, "again", attempt=2).decision.is_bound
    assert not decide(state, BODY, "free").decision.is_bound


def test_a_decision_tells_the_split_and_the_window_before_it() -> None:
    state = new_state(round_card(1), prefix_ratio=0.7, window_requests=1)
    first = decide(state, BODY, "first")
    assert first.decision.split == SplitNow(prefix_ratio=0.7)
    state.record_receipt(first, receipt_for(first.plan, 1_000), 1.0)
    split = decide(state, BODY, "second", now_s=2.0).decision.split
    assert split is not None
    assert split.last_review is not None
    assert split.last_review.num_requests == 1
    assert split.last_move is None


def test_with_a_fixed_split_a_decision_tells_none() -> None:
    assert decide(new_state(round_card(1), split="fixed"), BODY).decision.split is None


def test_a_decision_of_an_older_router_can_be_read() -> None:
    """Without all that was added to the first version."""
    told = decide(new_state(round_card(1)), BODY).decision
    fields = decode(encode(told), dict[str, object])
    for added in ("num_workers", "is_bound", "split", "unknown_segments"):
        del fields[added]
    for candidate in fields["candidates"]:  # type: ignore[attr-defined]
        del candidate["copied_tokens"], candidate["score_s"]
    read = decode(encode(fields), Decision)
    assert (read.num_workers, read.is_bound, read.split) == (0, False, None)
    assert read.plan == told.plan
    assert read.candidates[0].score_s is None
