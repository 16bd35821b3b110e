"""A prompt's segments as columns."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from nebula_protocol.layout import PromptLayout
from nebula_router.core.load_snapshot import FloatArray


@dataclass(frozen=True, slots=True)
class SegmentSpans:
    """Shape [S]. The prompt's last token is always computed, so `ends` stop before it."""

    starts: FloatArray
    ends: FloatArray
    sizes: FloatArray
    """Of the whole segments: what a copy transfers."""

    @classmethod
    def of(cls, layout: PromptLayout) -> Self:
        starts = np.array([segment.start for segment in layout.segments], dtype=np.float64)
        ends = np.array([segment.end for segment in layout.segments], dtype=np.float64)
        return cls(starts=starts, ends=np.minimum(ends, layout.num_tokens - 1), sizes=ends - starts)

    def take(self, rows: npt.NDArray[np.intp]) -> "SegmentSpans":
        return SegmentSpans(starts=self.starts[rows], ends=self.ends[rows], sizes=self.sizes[rows])
