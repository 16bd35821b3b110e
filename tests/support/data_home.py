"""The test's end of a home of segments in a process of its own."""

import base64
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
from support.json_process import JsonProcess

from nebula_protocol.data_plane import DataPlaneCard

_START_S = 90.0
_FETCH_S = 60.0


@dataclass(frozen=True, slots=True)
class HomeHoldings:
    is_clean: bool
    """Nothing is pinned, leased or reserved, and nothing is being fetched."""
    lost_pages: int
    """Neither free nor in a segment."""
    intact: int
    """Of the source's segments, those that are here byte for byte."""


class HomeProcess:
    def __init__(self, transport: str, folder: Path, source: DataPlaneCard) -> None:
        root = Path(__file__).parents[2]
        import_roots = map(str, (root / "components", root / "tests", root))
        self._process = JsonProcess(
            Path(__file__).with_name("data_home_process.py"),
            *(transport, str(folder), base64.b64encode(msgspec.msgpack.encode(source)).decode()),
            environment={**os.environ, "PYTHONPATH": os.pathsep.join(import_roots)},
        )
        self._process.wait_for_key("pid", _START_S)
        self.kill = self._process.kill
        self.close = self._process.close

    def begin_fetch(self) -> None:
        """Returns when there is room for what the source offers; not a byte has come yet."""
        self._process.send(do="fetch")
        self._process.wait_for_key("reserved", _FETCH_S)

    def go_on(self) -> None:
        self._process.send(do="go_on")

    def results(self) -> list[str]:
        """Of the fetch: where each segment came from, or why it did not."""
        results = self._process.wait_for_key("results", _FETCH_S)["results"]
        assert isinstance(results, list)
        return results

    def holdings(self) -> HomeHoldings:
        self._process.send(do="tell")
        return msgspec.convert(self._process.wait_for_key("is_clean"), HomeHoldings)
