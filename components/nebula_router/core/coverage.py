"""What each worker has of one prompt, at one moment: the index's answer and the planner's question."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nebula_protocol.ids import WorkerWithDpRank

NOT_HELD = 0
STORED = 1
UNCONFIRMED = 2
IN_FLIGHT = 3
"""States of a segment at a holder, as stored in `Coverage.segment_states`."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Columns are the candidate holders, rows the prompt's segments in order. W workers, S segments."""

    holders: tuple[WorkerWithDpRank, ...]
    prefix_device_tokens: npt.NDArray[np.int64]
    """Shape [W]: length of the leading run of blocks in the device tier (confirmed or expected)."""
    prefix_tokens: npt.NDArray[np.int64]
    """Shape [W]: the same over both tiers; the part beyond the device run must be reloaded from the store."""
    segment_states: npt.NDArray[np.uint8]
    """Shape [S, W]."""
    segment_ready_at_s: npt.NDArray[np.float64]
    """Shape [S, W]: when an IN_FLIGHT segment should be complete there; 0 elsewhere."""
