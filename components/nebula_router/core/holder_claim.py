"""One request's share of the speculation: what it is expected to leave at one holder."""

from dataclasses import dataclass, field
from typing import NewType

import numpy as np

from nebula_protocol.ids import RequestId, SegmentHash
from nebula_router.core.holders import Holder
from nebula_router.core.key_map import IntArray
from nebula_router.core.prefix_blocks import BlockRun

ClaimId = NewType("ClaimId", int)
"""Ascending in the order of dispatch."""


def _no_handles() -> IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class HolderClaim:
    """IN_FLIGHT until its receipt, then UNCONFIRMED until `deadline_s`."""

    claim_id: ClaimId
    request_id: RequestId
    holder: Holder
    deadline_s: float
    block_handles: IntArray = field(default_factory=_no_handles)
    """Of the rows of claimed prefix blocks."""
    deferred: BlockRun | None = None
    """Claimed blocks further down the same chain, without rows yet."""
    segment_hashes: set[SegmentHash] = field(default_factory=set)
    """Of the segments ever claimed here, settled or not."""
    ready_at_s: dict[int, float] = field(default_factory=dict)
    """Of the claimed segments, by row."""
    in_flight: bool = True
    live: bool = True
