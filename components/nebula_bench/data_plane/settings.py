"""What the data plane's benchmark measures, and how often."""

from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nebula_bench.data_plane.faults_settings import FaultsSettings
from nebula_bench.data_plane.fetch_settings import FetchSettings
from nebula_bench.data_plane.parallel_settings import ParallelSettings
from nebula_bench.data_plane.replay_settings import LiveReplaySettings


class DataPlanePart(StrEnum):
    THROUGHPUT = "throughput"
    """Bytes a second of each transport beside a plain socket copy."""
    FETCH = "fetch"
    """Passages that another worker has, or is computing, beside computing them."""
    FAULTS = "faults"
    """The tests of transfers that go wrong."""
    PARALLEL = "parallel"
    """Passages of one prompt computed on several workers at once, on an idle cluster and under full load."""
    REPLAY = "replay"
    """A trace under the router's accounting and others, live and in virtual time."""


class ThroughputSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    transports: tuple[Literal["tcp", "nixl"], ...] = Field(default=("tcp", "nixl"), min_length=1)
    """Measured beside the plain copy."""
    num_segments: int = Field(default=8, ge=1, le=1024)
    """Segments of one transfer."""
    segment_tokens: int = Field(default=512, ge=1, le=1 << 16)
    """Tokens of each."""
    page_tokens: int = Field(default=16, ge=1, le=1024)
    """Tokens of a page."""
    page_bytes: int = Field(default=368_640, ge=8, le=1 << 30)
    """Bytes of a page: SmolLM2-135M's are 2 x 30 layers x 16 tokens x 3 heads x 64 x 2 bytes."""
    num_repetitions: int = Field(default=7, ge=5, le=1000)
    """Transfers of each kind, in turn; the reported number is the median."""

    @property
    def segment_pages(self) -> int:
        return -(-self.segment_tokens // self.page_tokens)

    @property
    def num_pages(self) -> int:
        return self.num_segments * self.segment_pages

    @property
    def num_bytes(self) -> int:
        """Of one transfer."""
        return self.num_pages * self.page_bytes


class DataPlaneBenchSettings(BaseModel):
    """One field for each part of the benchmark, and what all share."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    throughput: ThroughputSettings = ThroughputSettings()
    """Of part `throughput`."""
    fetch: FetchSettings = FetchSettings()
    """Of part `fetch`."""
    faults: FaultsSettings = FaultsSettings()
    """Of part `faults`."""
    parallel: ParallelSettings = ParallelSettings()
    """Of part `parallel`."""
    replay: LiveReplaySettings = LiveReplaySettings()
    """Of part `replay`."""
    logs: Path | None = None
    """Folder for the logs of graphs; without one they go with their working directories."""
