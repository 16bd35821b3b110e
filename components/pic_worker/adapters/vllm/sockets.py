"""The local sockets between this process and vLLM's."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class SocketFolder:
    """A folder of its own for one worker's sockets: short, since a socket's path has about a hundred characters."""

    path: Path

    @classmethod
    def make(cls) -> Self:
        return cls(Path(tempfile.mkdtemp(prefix="nebula-")))

    @property
    def news_url(self) -> str:
        return self._url("news")

    @property
    def control_url(self) -> str:
        return self._url("control")

    @property
    def block_events_url(self) -> str:
        return self._url("blocks")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _url(self, name: str) -> str:
        return f"ipc://{self.path / name}"
