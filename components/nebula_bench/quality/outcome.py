"""What was measured on one prompt."""

import msgspec

from nebula_protocol.ids import Origin


class ConditionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    origin: Origin
    fusion: str
    kl: float
    """KL(full prefill || reuse) of the first answer token, in nats."""
    common_tokens: int
    """Greedy tokens before the answer parts from that of full prefill."""
    recomputed_ratio: float
    """Of the reused tokens."""


class PromptOutcome(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    number: int
    num_passages: int
    prompt_tokens: int
    segment_tokens: int
    conditions: tuple[ConditionOutcome, ...]
