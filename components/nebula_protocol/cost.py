"""The closed form of prefill time that router and worker agree on."""

import msgspec


class CostFit(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one engine step: `t0 + a * tokens + b * pairs`, with pairs = sum of n * (context + n / 2).

    Coarse by design (6 to 21 % for steps of 512 tokens and more): the router starts from it and corrects itself
    from receipts.
    """

    step_s: float
    per_token_s: float
    per_pair_s: float

    def marginal_s(self, num_tokens: int, context_tokens: int) -> float:
        """Time that `num_tokens` over `context_tokens` of context add to a step that runs anyway."""
        return self.per_token_s * num_tokens + self.per_pair_s * attention_pairs(num_tokens, context_tokens)


def attention_pairs(num_tokens: int, context_tokens: int) -> float:
    """Query-key pairs of `num_tokens` new tokens behind `context_tokens` of context."""
    return num_tokens * (context_tokens + num_tokens / 2)


class LinkFit(msgspec.Struct, frozen=True, kw_only=True):
    """A transfer takes `floor_s + bytes / bytes_per_s`; transfers that share an end share its bandwidth."""

    floor_s: float
    bytes_per_s: float

    def transfer_s(self, num_bytes: float) -> float:
        return self.floor_s + num_bytes / self.bytes_per_s


NO_LINK = LinkFit(floor_s=0.0, bytes_per_s=1.0)
"""Of a worker whose KV cannot be copied to or from others: any computation is sooner done than a transfer."""
