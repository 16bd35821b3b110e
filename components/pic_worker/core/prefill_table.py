"""Measured prefill time as a function of new tokens and context."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from nebula_protocol.cost import CostFit


@dataclass(frozen=True, slots=True)
class TableFit:
    """Closed form `t0 + a * n + b * n * (c + n / 2)` of a table."""

    step_s: float
    per_token_s: float
    per_pair_s: float


@dataclass(frozen=True, slots=True)
class PrefillTable:
    """Kernel time of one step on one GPU. Make it with `make_table`.

    Between two rows the time is a power of the number of new tokens: straight on log-log axes. With time straight
    over log(tokens) instead, the middle of two rows is 6 to 14 % too slow (against 1 to 2 %) and the marginal cost
    of a token jumps by half at every row.
    """

    model: str
    dtype: str
    system: str
    kv_bytes_per_token: int
    fit: TableFit
    new_tokens: tuple[int, ...]
    context_tokens: tuple[int, ...]
    rows_s: tuple[tuple[float, ...], ...]
    """Seconds, one row per entry of `new_tokens`, one column per entry of `context_tokens`; never decreasing."""

    def step_s(self, new_tokens: float, context_tokens: float) -> float:
        """Time of one step of `new_tokens` behind `context_tokens`.

        Below the smallest row a step is as long as that row (it is bound by reading weights); beyond the last row
        and column it grows on in a straight line. The context is negative for a step of several short requests, whose
        pairs are fewer than those of one prompt of the same length.
        """
        rows = self.new_tokens
        if new_tokens <= rows[0]:
            return self._row_s(0, context_tokens)
        if new_tokens >= rows[-1]:
            last_s, before_s = self._row_s(-1, context_tokens), self._row_s(-2, context_tokens)
            return last_s + (last_s - before_s) * (new_tokens - rows[-1]) / (rows[-1] - rows[-2])
        above = bisect_right(rows, new_tokens)
        low, high = rows[above - 1], rows[above]
        low_s, high_s = self._row_s(above - 1, context_tokens), self._row_s(above, context_tokens)
        return low_s * math.pow(high_s / low_s, math.log(new_tokens / low) / math.log(high / low))

    def _row_s(self, row: int, context_tokens: float) -> float:
        columns, times_s = self.context_tokens, self.rows_s[row]
        # A step cannot have fewer pairs than none.
        context_tokens = max(context_tokens, -self.new_tokens[row] / 2)
        right = min(max(bisect_right(columns, context_tokens), 1), len(columns) - 1)
        left = right - 1
        slope = (times_s[right] - times_s[left]) / (columns[right] - columns[left])
        return times_s[left] + slope * (context_tokens - columns[left])

    def cost_fit(self, time_factor: float = 1.0, step_overhead_s: float = 0.0) -> CostFit:
        """The closed form of `step_s(...) * time_factor + step_overhead_s`."""
        return CostFit(
            step_s=self.fit.step_s * time_factor + step_overhead_s,
            per_token_s=self.fit.per_token_s * time_factor,
            per_pair_s=self.fit.per_pair_s * time_factor,
        )


def make_table(
    *,
    model: str,
    dtype: str,
    system: str,
    kv_bytes_per_token: int,
    fit: TableFit,
    new_tokens: Sequence[int],
    context_tokens: Sequence[int],
    rows_s: Sequence[Sequence[float]],
) -> PrefillTable:
    """A table whose measuring noise is ironed out: no cell is below one with fewer new tokens or less context."""
    columns = zip(*(accumulate(row, max) for row in rows_s), strict=True)
    ironed = zip(*(accumulate(column, max) for column in columns), strict=True)
    return PrefillTable(
        model=model,
        dtype=dtype,
        system=system,
        kv_bytes_per_token=kv_bytes_per_token,
        fit=fit,
        new_tokens=tuple(new_tokens),
        context_tokens=tuple(context_tokens),
        rows_s=tuple(ironed),
    )
