"""Prompts whose KV waits for a decode worker."""

from nebula_protocol.ids import RequestId
from pic_worker.adapters.vllm.held_prompts import HeldPrompts

PROMPT = RequestId("r")


def test_a_held_prompt_is_there_until_its_time_is_over() -> None:
    held = HeldPrompts(hold_s=60.0)
    held.hold(PROMPT, 100, now_s=10.0)
    assert held.count(now_s=69.9) == 1
    assert held.count(now_s=70.0) == 0
    assert held.begin_transfer(PROMPT, now_s=70.0) == 0


def test_a_transfer_that_began_is_waited_for_a_few_seconds() -> None:
    held = HeldPrompts(hold_s=60.0)
    held.hold(PROMPT, 100, now_s=0.0)
    assert held.begin_transfer(PROMPT, now_s=1.0) == 100
    assert held.count(now_s=5.9) == 1
    assert held.count(now_s=6.0) == 0


def test_the_end_of_a_transfer_frees_the_prompt_once() -> None:
    held = HeldPrompts(hold_s=60.0)
    held.hold(PROMPT, 100, now_s=0.0)
    assert held.end_transfer(PROMPT) == 100
    assert held.end_transfer(PROMPT) == 0
    assert held.count(now_s=0.0) == 0


def test_an_unknown_prompt_is_not_held() -> None:
    assert HeldPrompts(hold_s=60.0).begin_transfer(PROMPT, now_s=0.0) == 0
