"""vLLM's output as the worker's."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tokenizers import Tokenizer

from nebula_protocol.handover import Sampled, TopToken

if TYPE_CHECKING:
    # Takes seconds to import.
    from vllm.outputs import RequestOutput

TokenText = Callable[[int], str]
"""The text of one token."""

ERROR: Final = "error"
LENGTH: Final = "length"
_FINISH_REASONS: Final = {"abort": "cancelled", "repetition": "stop"}
"""vLLM's reasons that Dynamo names otherwise."""


def token_text_of(tokenizer: Tokenizer) -> TokenText:
    def text(token_id: int) -> str:
        decoded: str = tokenizer.decode([token_id], skip_special_tokens=False)
        return decoded

    return text


def read_output(output: "RequestOutput", token_text: TokenText) -> Sampled:
    """The tokens of one output: those that are new, or all, as the request's sampling parameters say."""
    (completion,) = output.outputs
    logprobs: list[float] = []
    places: list[tuple[TopToken, ...]] = []
    for token_id, place in zip(completion.token_ids, completion.logprobs or (), strict=False):
        if place is not None and token_id in place:
            logprobs.append(place[token_id].logprob)
            places.append(
                tuple(TopToken(other, token_text(other), top.logprob, top.rank or 0) for other, top in place.items())
            )
    reason = completion.finish_reason
    return Sampled(
        token_ids=tuple(completion.token_ids),
        finish_reason=None if reason is None else _FINISH_REASONS.get(reason, reason),
        logprobs=tuple(logprobs),
        top_tokens=tuple(places),
    )
