"""What was measured at one length of prompt in one scene."""

from dataclasses import dataclass

from nebula_bench.decision.timing import Repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPoint:
    num_workers: int
    prompt_tokens: int
    num_blocks: int
    """In either index."""
    num_segments: int
    """In Nebula's, beside the blocks."""
    marked: Repeated
    """Nebula's decision where the client marked the segments."""
    unmarked: Repeated
    """Nebula's decision where they are found by content."""
    reading: Repeated
    """Turning the request's list of ids into an array, and reading its marks; not part of the decisions."""
    dynamo_booking: Repeated
    """Dynamo's choice with the request booked on the worker, as Nebula records it; takes the list of ids."""
    dynamo_query: Repeated
    """Dynamo's choice alone."""

    @property
    def ratio(self) -> float:
        """Nebula's slower decision to Dynamo's."""
        return max(self.marked.median_s, self.unmarked.median_s) / self.dynamo_booking.median_s
