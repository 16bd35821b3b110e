"""The test's end of a source of segments in a process of its own."""

import base64
import os
import signal
from pathlib import Path

import msgspec
from support.data_source_process import PAGE_BYTES, SOURCE, tokens_of_segment
from support.data_store import key_of
from support.json_process import JsonProcess

from nebula_protocol.data_plane import DataPlaneCard
from nebula_protocol.plan import Source
from pic_worker.segment_flight import RemoteSegment

NUM_TOKENS = 16
NUM_SEGMENTS = 4
SEGMENT_BYTES = 2 * 4 * PAGE_BYTES
"""Two ranks, four pages of four tokens: 2 MiB."""


class SourceProcess:
    def __init__(self, transport: str, secret_file: str, *, lease_s: float = 1.0) -> None:
        script = Path(__file__).with_name("data_source_process.py")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, _import_roots()))}
        self._process = JsonProcess(
            script, transport, secret_file, str(NUM_SEGMENTS), str(NUM_TOKENS), str(lease_s), environment=environment
        )
        ready = self._process.wait_for_key("card", 90.0)
        self.card = msgspec.msgpack.decode(base64.b64decode(str(ready["card"])), type=DataPlaneCard)
        self._pid = int(str(ready["pid"]))
        self.kill = self._process.kill
        self.close = self._process.close

    def freeze(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def holds(self) -> int:
        """Pins and leases that it still has."""
        self._process.send(ask="state")
        state = self._process.wait_for_key("pins")
        return sum(int(str(state[name])) for name in ("pins", "leases", "server_leases"))


def _import_roots() -> list[Path]:
    root = Path(__file__).parents[2]
    return [root / "components", root / "tests", root]


def wanted(num_segments: int = NUM_SEGMENTS, how: Source = Source.FETCH) -> list[RemoteSegment]:
    """The first of the segments that the source has."""
    segments = (tokens_of_segment(seed, NUM_TOKENS) for seed in range(1, num_segments + 1))
    return [RemoteSegment(key=key_of(one), token_bytes=one, source=how, from_worker=SOURCE) for one in segments]
