"""The load against an engine that is simulated step by step, with costs that both agree on."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.placement_case import STEP_S, TOKEN_S, round_card, worker

from nebula_protocol.ids import RequestId
from nebula_router.core.fleet import Fleet
from nebula_router.core.lanes import Lanes
from nebula_router.core.load import LoadTracker
from nebula_router.core.queued_work import QueuedWork
from nebula_router.core.worker_profile import WorkerProfile

BUDGET = 1000
CARD = round_card(1, max_step_tokens=BUDGET)
ONE = worker(1)


@dataclass(slots=True)
class Prompt:
    number: int
    arrives_s: float
    runnable_s: float
    tokens: int
    left: int = 0
    done_s: float = 0.0


# Off the grid of step times, so that nothing arrives exactly when a step ends.
arrivals_s = st.integers(0, 600).map(lambda ms: ms / 1000 + 0.00037)
sizes = st.integers(1, 2500)


def prompts(waits_s: st.SearchStrategy[float]) -> st.SearchStrategy[list[Prompt]]:
    """In order of arrival; the last one waits for nothing."""

    def build(drawn: list[tuple[float, float, int]]) -> list[Prompt]:
        ordered = sorted(drawn)
        last = len(ordered) - 1
        return [
            Prompt(number, at_s + number * 1e-6, at_s + number * 1e-6 + (0.0 if number == last else wait_s), tokens)
            for number, (at_s, wait_s, tokens) in enumerate(ordered)
        ]

    return st.lists(st.tuples(arrivals_s, waits_s, sizes), min_size=1, max_size=8).map(build)


def simulate(all_prompts: list[Prompt]) -> None:
    """Fills in when each is done: begun prompts first, then runnable ones in order of arrival, up to the budget."""
    for prompt in all_prompts:
        prompt.left = prompt.tokens
    now_s = 0.0
    while outstanding := [prompt for prompt in all_prompts if prompt.left]:
        begun = [prompt for prompt in outstanding if prompt.left < prompt.tokens]
        fresh = [prompt for prompt in outstanding if prompt.left == prompt.tokens and prompt.runnable_s <= now_s]
        step: list[tuple[Prompt, int]] = []
        budget = BUDGET
        for prompt in begun + fresh:
            taken = min(budget, prompt.left)
            budget -= taken
            step.append((prompt, taken))
        if not step:
            now_s = min(prompt.runnable_s for prompt in outstanding)
            continue
        now_s += STEP_S + TOKEN_S * (BUDGET - budget)
        for prompt, taken in step:
            prompt.left -= taken
            if taken and not prompt.left:
                prompt.done_s = now_s


def predict(all_prompts: list[Prompt]) -> float:
    """When the last one will be done, as seen when it arrives, with receipts so far at once."""
    *earlier, last = all_prompts
    loads = LoadTracker()
    loads.put_worker(WorkerProfile(ONE, CARD))
    happenings = [(prompt.arrives_s, "dispatch", prompt) for prompt in earlier]
    happenings += [(prompt.done_s, "receipt", prompt) for prompt in earlier if prompt.done_s <= last.arrives_s]
    for at_s, what, prompt in sorted(happenings, key=lambda happening: happening[:2]):
        request_id = RequestId(str(prompt.number))
        if what == "dispatch":
            work = QueuedWork(prompt.tokens, 0.0)
            loads.record_dispatch(request_id, ONE, work, runnable_at_s=prompt.runnable_s, now_s=at_s)
        else:
            loads.record_receipt(request_id, ONE, None, now_s=at_s)
    fleet = Fleet.of([WorkerProfile(ONE, CARD)])
    lanes = Lanes.of(loads.snapshot(fleet.workers, last.arrives_s), fleet, fleet.step_s)
    timeline = lanes.timeline(np.array([-np.inf]), np.array([float(last.tokens)]), np.array([TOKEN_S * last.tokens]))
    return last.arrives_s + float(timeline.completion_s[0])


@given(prompts(st.just(0.0)))
def test_the_completion_of_the_last_prompt_is_predicted_exactly(all_prompts: list[Prompt]) -> None:
    simulate(all_prompts)
    assert predict(all_prompts) == pytest.approx(all_prompts[-1].done_s)


@given(prompts(st.integers(0, 300).map(lambda ms: ms / 1000)))
def test_those_who_wait_for_segments_can_only_make_it_later(all_prompts: list[Prompt]) -> None:
    simulate(all_prompts)
    assert predict(all_prompts) <= all_prompts[-1].done_s + 1e-9


@given(prompts(st.integers(0, 300).map(lambda ms: ms / 1000)))
def test_an_engine_that_has_delivered_all_is_idle(all_prompts: list[Prompt]) -> None:
    simulate(all_prompts)
    loads = LoadTracker()
    loads.put_worker(WorkerProfile(ONE, CARD))
    happenings = [(prompt.arrives_s, 0, prompt) for prompt in all_prompts]
    happenings += [(prompt.done_s, 1, prompt) for prompt in all_prompts]
    for at_s, is_receipt, prompt in sorted(happenings, key=lambda happening: happening[:2]):
        request_id = RequestId(str(prompt.number))
        if is_receipt:
            loads.record_receipt(request_id, ONE, None, now_s=at_s)
        else:
            work = QueuedWork(prompt.tokens, 0.0)
            loads.record_dispatch(request_id, ONE, work, runnable_at_s=prompt.runnable_s, now_s=at_s)
    load = loads.snapshot((ONE,), max(prompt.done_s for prompt in all_prompts))
    for column in (load.free_in_s, load.queued_tokens, load.co_batched, load.turn_in_s, load.late_free_in_s):
        assert column.tolist() == [0.0]
    assert loads.num_outstanding == 0
