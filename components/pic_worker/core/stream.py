"""KV that comes layer by layer, and when a step may begin that uses it."""

from typing import NamedTuple


class Production(NamedTuple):
    """The step that computes what a peer joins: layer by layer, from its begin to its end."""

    begins_at_s: float
    ends_at_s: float


class Stream(NamedTuple):
    """A copy on its way whose layers arrive evenly between two moments."""

    first_at_s: float
    last_at_s: float

    def usable_at_s(self, step_s: float, pieces: int) -> float:
        """The earliest begin of a step of `step_s` that no layer keeps waiting.

        Computing is even too: with P pieces, the first must be there at the begin, and the last when (P - 1) / P of the
        step is over. Both are straight lines, so what holds for the two ends holds between them.
        """
        return max(self.first_at_s, self.last_at_s - step_s * (pieces - 1) / pieces)


def overlapped_s(compute_s: float, load_s: float, pieces: int) -> float:
    """A step that loads KV layer by layer while it computes: as long as the longer of the two, and what one piece of
    the shorter adds at the begin or the end."""
    return max(compute_s, load_s) + min(compute_s, load_s) / pieces
