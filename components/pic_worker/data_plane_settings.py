"""Settings of the data plane: how segments are copied between workers."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nebula_protocol.data_plane import DataPlaneKind


class DataPlaneSettings(BaseModel):
    """Workers copy from each other only where all of them have the same transport and the same secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    transport: Literal["auto", "off", "tcp", "nixl"] = "auto"
    """What moves the bytes: plain TCP, NIXL, or nothing: then segments stay where they are. auto: TCP where there is a
    secret."""
    secret_file: str = ""
    """File with the deployment's secret, at least 16 bytes: who does not know it gets nothing. `dynamo serve` makes one
    for each run where none is given."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address under which other workers reach this one."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the side channel; 0 picks a free one."""
    lease_s: float = Field(default=10.0, gt=0, le=600)
    """How long a segment that was offered stays in place when nothing more is heard of its taker."""
    join_grace_s: float = Field(default=0.5, ge=0, le=60)
    """How long a worker waits for a segment that nobody there has begun to compute."""
    stall_s: float = Field(default=2.0, gt=0, le=60)
    """A peer that moves not one byte for so long is given up."""
    max_peers: int = Field(default=256, ge=1, le=65536)
    """Most transfers that are served at once."""
    veto_ratio: float = Field(default=1.5, gt=0, le=1000)
    """A fetch that takes this many times as long as computing, at the speed seen last, is not begun."""

    @property
    def kind(self) -> DataPlaneKind | None:
        """None: turned off."""
        match self.transport:
            case "auto":
                return DataPlaneKind.TCP if self.secret_file else None
            case "off":
                return None
            case _:
                return DataPlaneKind(self.transport)

    @property
    def secret_path(self) -> Path:
        return Path(self.secret_file)
