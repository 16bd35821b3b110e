"""Which tokens of a claim are computed again or for the first time."""

from collections.abc import Iterable
from dataclasses import dataclass

from nebula_protocol.cost import attention_pairs
from nebula_protocol.fusion import Fusion
from pic_worker.core.claim import Claim
from pic_worker.core.compute_work import Run


@dataclass(frozen=True, slots=True)
class Recompute:
    runs: tuple[Run, ...]
    """Known beforehand: gaps, and the leading tokens of each used segment. Ascending, disjoint, not adjacent."""
    selected_tokens: int
    """To be chosen among the loaded segment tokens, when their KV is there."""
    use_tokens: tuple[int, ...]
    """Of each used segment; where tokens are chosen among all, its share."""
    attention_pairs: float
    """Of all of them; the chosen ones are taken to be spread evenly."""

    @property
    def num_tokens(self) -> int:
        return self.selected_tokens + sum(run.end - run.start for run in self.runs)


def plan_recompute(claim: Claim, fusion: Fusion) -> Recompute:
    """The tokens of `claim` to compute so that its segments fit their context; prefix blocks are exact already."""
    use_tokens = tuple(fusion.recomputed_tokens(use.end - use.start) for use in claim.uses)
    runs = list(claim.gaps)
    if not fusion.needs_probe:
        runs += [Run(use.start, use.start + leading) for use, leading in zip(claim.uses, use_tokens, strict=True)]
    merged = merge_runs(runs)
    pairs = sum(attention_pairs(run.end - run.start, run.start) for run in merged)
    selected_tokens = 0
    if fusion.needs_probe:
        selected_tokens = sum(use_tokens)
        pairs += sum(
            num_tokens * (use.start + use.end) / 2 for use, num_tokens in zip(claim.uses, use_tokens, strict=True)
        )
    return Recompute(merged, selected_tokens, use_tokens, pairs)


def merge_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same tokens in ascending runs that neither overlap nor touch; empty ones are left out."""
    merged: list[Run] = []
    for run in sorted(run for run in runs if run.start < run.end):
        if merged and run.start <= merged[-1].end:
            merged[-1] = Run(merged[-1].start, max(merged[-1].end, run.end))
        else:
            merged.append(run)
    return tuple(merged)


def overlaps(run: Run, others: Iterable[Run]) -> bool:
    return any(run.start < other.end and other.start < run.end for other in others)
