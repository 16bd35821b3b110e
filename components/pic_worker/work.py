"""What workers are asked for and what they answer, whatever engine computes it."""

from collections.abc import Mapping
from dataclasses import dataclass

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.handover import Handover
from nebula_protocol.plan import HelperTask, Plan
from nebula_protocol.tokens import TokenArray


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """A request at this worker: with a plan, with a helper task, or with neither (behind Dynamo's own router)."""

    tokens: TokenArray
    max_tokens: int | None
    options: RequestOptions
    plan: Plan | None
    helper_task: HelperTask | None
    body: Mapping[str, object]
    """The request as it came: an engine that samples reads its options there."""


@dataclass(frozen=True, slots=True)
class TopToken:
    token_id: int
    text: str
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens of an answer, next to each other."""

    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    """Why the answer ends with these tokens, in Dynamo's words; None while it goes on."""
    logprobs: tuple[float, ...] = ()
    """Of these tokens; empty where nobody asked."""
    top_tokens: tuple[tuple[TopToken, ...], ...] = ()
    """The likeliest tokens at the place of each; empty where nobody asked."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prefill worker's answer to a prompt."""

    first: Sampled
    handover: Handover
