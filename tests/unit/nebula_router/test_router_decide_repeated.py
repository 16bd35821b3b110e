"""What the router's one state calls computed again: a copy existed that it did not know of."""

from itertools import pairwise

from support.placement_case import round_card
from support.router_replies import EPOCH, receipt_for
from support.router_world import body_of, decide, new_state, served, sources, spans

from nebula_protocol.events import PicEvent, SegmentStored, WorkerPicEvents
from nebula_protocol.ids import EventId, Origin, WorkerId
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, Receipt, SegmentOutcome
from nebula_router.decide import Decided, RouterState

PROMPT = list(range(100))
MARKED = body_of(PROMPT, annotations=[spans((20, 80))])
DOMAIN = round_card(1).domain.domain_id


def test_a_decision_tells_of_which_segments_no_copy_was_known() -> None:
    state = new_state(round_card(1))
    served(state, MARKED)
    again = body_of([*range(500, 532), *PROMPT], annotations=[spans((0, 32), (52, 112))])
    decided = decide(state, again)
    # The first 32 tokens are new, the marked segment is not.
    assert decided.decision.unknown_segments == (0,) == tuple(decided.unknown_segments)


def stored_event(decided: Decided, worker_id: int) -> WorkerPicEvents:
    """The plan's only segment, stored by a worker of whose plans nobody knew."""
    (segment,) = decided.plan.segments
    stored = SegmentStored(
        segment_hash=segment.segment_hash,
        domain_id=decided.plan.domain_id,
        num_tokens=segment.end - segment.start,
        origin=Origin.ALONE,
    )
    events = (PicEvent(event_id=EventId(0), data=stored),)
    return WorkerPicEvents(worker_id=WorkerId(worker_id), epoch=EPOCH, events=events)


def repeated_tokens(state: RouterState, decided: Decided, receipt: Receipt | None = None) -> int:
    return state.record_receipt(decided, receipt or receipt_for(decided.plan, 100), 0.0).repeated_tokens


def with_outcome(decided: Decided, **changes: object) -> Receipt:
    """The receipt with another outcome of the only segment."""
    receipt = receipt_for(decided.plan, 100)
    (outcome,) = receipt.segments
    changed = {name: getattr(outcome, name) for name in SegmentOutcome.__struct_fields__} | changes
    return receipt_for(decided.plan, 100, segments=(SegmentOutcome(**changed),))


def test_a_copy_that_nobody_knew_of_makes_the_computation_a_repeated_one() -> None:
    state = new_state(round_card(1), round_card(2))
    decided = decide(state, MARKED)
    state.view.apply_pic_events(stored_event(decided, 2), 0.0)
    # Of the segment's 60 tokens the prefix covered 15.
    assert repeated_tokens(state, decided, with_outcome(decided, prefix_tokens=15)) == 45


def test_the_first_to_compute_repeats_nothing() -> None:
    state = new_state(round_card(1), round_card(2))
    assert repeated_tokens(state, decide(state, MARKED)) == 0


def test_computing_although_a_copy_was_known_is_on_purpose() -> None:
    state = new_state(round_card(1), round_card(2))
    served(state, MARKED)
    decided = decide(state, MARKED, excluded=(1,))
    assert decided.unknown_segments == frozenset()
    assert sources(decided) == [Source.COMPUTE]
    assert repeated_tokens(state, decided) == 0


def test_a_copy_that_a_later_request_makes_does_not_make_the_first_a_repetition() -> None:
    state = new_state(round_card(1), round_card(2))
    first = decide(state, MARKED, "first")
    later = decide(state, MARKED, "later", excluded=(1,))
    assert state.view.is_held_elsewhere(DOMAIN, first.plan.segments[0].segment_hash, first.plan.target)
    assert repeated_tokens(state, first) == 0
    assert repeated_tokens(state, later) == 0


def test_a_text_that_helpers_compute_for_its_first_place_is_not_repeated_at_its_second() -> None:
    state = new_state(round_card(1), round_card(2), round_card(3))
    tokens = [*range(4_000), *range(1_000, 4_000)]
    decided = decide(state, body_of(tokens, annotations=[spans(*pairwise(range(0, 7_001, 1_000)))]))
    assert sources(decided)[1:] == [Source.COMPUTE_AT] * 3 + [Source.COMPUTE] * 3
    assert state.view.is_held_elsewhere(DOMAIN, decided.plan.segments[-1].segment_hash, decided.plan.target)
    assert repeated_tokens(state, decided, receipt_for(decided.plan, 7_000)) == 0


def test_what_was_loaded_or_owed_by_a_helper_is_no_repetition() -> None:
    for changes in (
        {"done": Source.FETCH, "planned": Source.FETCH},
        {"planned": Source.COMPUTE_AT, "fallback": FallbackReason.LATE},
    ):
        state = new_state(round_card(1), round_card(2))
        decided = decide(state, MARKED)
        state.view.apply_pic_events(stored_event(decided, 2), 0.0)
        assert repeated_tokens(state, decided, with_outcome(decided, **changes)) == 0
