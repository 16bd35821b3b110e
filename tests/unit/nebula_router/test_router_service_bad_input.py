"""What a client may get wrong, as far as the service: a reason, nothing placed, and the next one is served."""

import pytest
from support.placement_case import round_card
from support.router_replies import answer_tokens
from support.router_world import RouterWorld, body_of, spans, state_of

from nebula_router.errors import BadRequestError, NoWorkerError
from nebula_router.ports import JsonObject

PROMPT = list(range(100))


async def refusal_of(body: JsonObject) -> str:
    world = RouterWorld(prefill=(1,))
    with pytest.raises(BadRequestError) as refused:
        await world.answer(body)
    assert (world.prefill.calls, world.decisions.decisions, world.state.view.num_claims) == ([], [], 0)
    assert (await world.answer(body_of(PROMPT)))["token_ids"] == answer_tokens(100, 1)
    return str(refused.value)


async def test_an_empty_prompt() -> None:
    assert await refusal_of(body_of([])) == "the prompt is empty"


async def test_a_prompt_over_the_context() -> None:
    # The workers' cards say 32,768.
    reason = await refusal_of(body_of([1] * 32_768))
    assert reason == "the prompt has 32768 tokens, the context holds 32768 with the answer"


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (((50, 101),), "span [50, 101) is outside the prompt of 100 tokens"),
        (((-1, 5),), "span [-1, 5) is outside the prompt of 100 tokens"),
        (((10, 10),), "span [10, 10) is empty"),
        (((20, 10),), "span [20, 10) is empty"),
        (((0, 50), (49, 60)), "span [49, 60) overlaps the one before it, which ends at 50"),
    ],
)
@pytest.mark.parametrize("pic", ["nebula.pic=on", "nebula.pic=off"])
async def test_spans_that_do_not_fit(bounds: tuple[tuple[int, int], ...], reason: str, pic: str) -> None:
    assert await refusal_of(body_of(PROMPT, annotations=[spans(*bounds), pic])) == reason


async def test_a_malformed_annotation() -> None:
    reason = await refusal_of(body_of(PROMPT, annotations=["nebula.spans=[[0,5"]))
    assert reason.startswith("annotation nebula.spans has the value '[[0,5'; the right form is ")


async def test_an_unknown_annotation() -> None:
    reason = await refusal_of(body_of(PROMPT, annotations=["nebula.split=1"]))
    assert reason == "unknown annotation 'nebula.split'; known are nebula.spans, nebula.pic, nebula.salt, nebula.fusion"


async def test_tokens_that_are_no_ids() -> None:
    reason = await refusal_of(body_of(PROMPT) | {"token_ids": [1, 2.5]})
    assert reason.startswith("token ids must be integers between 0 and 2**32 - 1")


async def test_annotations_that_are_no_list() -> None:
    assert await refusal_of(body_of(PROMPT) | {"annotations": "x"}) == "annotations must be a list of strings"


async def test_a_good_prompt_is_not_called_too_long_while_no_worker_is_known() -> None:
    world = RouterWorld(prefill=(), worker_wait_s=0)
    with pytest.raises(NoWorkerError, match="no prefill worker came within 0 s"):
        await world.answer(body_of(PROMPT))
    world.prefill.join(1)
    world.state.apply_state(state_of(round_card(1)), 0.0)
    assert (await world.answer(body_of(PROMPT)))["token_ids"] == answer_tokens(100, 1)
