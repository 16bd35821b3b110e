"""How fast segments move between two processes, beside a plain socket copy of as many bytes in the same run."""

import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nebula_bench.data_plane.bench_memory import BenchMemory
from nebula_bench.data_plane.page_store import BENCH_DOMAIN, PageStore, segment_tokens
from nebula_bench.data_plane.plain_copy import copy_plainly
from nebula_bench.data_plane.settings import ThroughputSettings
from nebula_bench.data_plane.source_process import SOURCE, SourceAddresses
from nebula_bench.errors import SceneError
from nebula_bench.results import Bar, Measurement
from nebula_protocol.data_plane import DataPlaneCard
from nebula_protocol.ids import RequestId, WorkerEpoch, WorkerId
from nebula_protocol.plan import Source
from pic_worker.adapters.data_plane import DataPlane, WorkerIdentity, start_data_plane
from pic_worker.adapters.fixed_directory import FixedDirectory
from pic_worker.adapters.mapped_pages import MappedPages
from pic_worker.data_plane_settings import DataPlaneSettings
from pic_worker.segment_flight import Brought, RemoteSegment

PLAIN = "plain"
_HOME = WorkerIdentity(worker_id=WorkerId(2), epoch=WorkerEpoch(1), domain_id=BENCH_DOMAIN)
_LIMIT_S = 120.0
_SHARE_BAR = Bar(">=", 0.5)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Durations of equal transfers of one kind, in the order measured."""

    kind: str
    num_bytes: int
    durations_s: tuple[float, ...]

    @property
    def bytes_per_s(self) -> float:
        """Of the median duration."""
        return self.num_bytes / statistics.median(self.durations_s)


async def measure_throughput(settings: ThroughputSettings, on_round: Callable[[], None]) -> tuple[Throughput, ...]:
    """The plain copy first, then the transports in their order.

    Raises:
        SceneError: the other process does not start, or a transfer fails.
        StartError: a transport is not to be had.
    """
    async with AsyncExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
        secret_file = folder / "secret"
        secret_file.write_bytes(secrets.token_bytes(32).hex().encode())
        addresses = started.enter_context(_source(settings, secret_file))
        memory = started.enter_context(BenchMemory(settings.num_pages, settings.page_tokens, settings.page_bytes))
        mapped = MappedPages(memory.shape.arena_paths, settings.page_bytes)
        started.callback(mapped.close)
        planes: dict[str, DataPlane] = {
            transport: await started.enter_async_context(
                _home_plane(settings, transport, secret_file, memory, addresses.cards[transport])
            )
            for transport in settings.transports
        }
        durations: dict[str, list[float]] = {PLAIN: [], **{transport: [] for transport in planes}}
        # The first of each kind makes connections and touches memory: it does not count.
        for number in range(settings.num_repetitions + 1):
            for kind in durations:
                took_s = await _time_one(settings, planes.get(kind), addresses, mapped)
                if number:
                    durations[kind].append(took_s)
            on_round()
        return tuple(Throughput(kind, settings.num_bytes, tuple(took_s)) for kind, took_s in durations.items())


def throughput_measurements(throughputs: tuple[Throughput, ...]) -> tuple[Measurement, ...]:
    """A share of the plain copy for each transport, and the speeds behind it."""
    plain = next(one for one in throughputs if one.kind == PLAIN)
    shares = [
        Measurement(id=f"{one.kind}_share", value=one.bytes_per_s / plain.bytes_per_s, unit="ratio", bar=_SHARE_BAR)
        for one in throughputs
        if one is not plain
    ]
    speeds = [Measurement(id=f"{one.kind}_bytes_per_s", value=one.bytes_per_s, unit="bytes/s") for one in throughputs]
    return (*shares, *speeds)


async def _time_one(
    settings: ThroughputSettings, plane: DataPlane | None, addresses: SourceAddresses, mapped: MappedPages
) -> float:
    begun_s = time.perf_counter()
    if plane is None:
        await asyncio.to_thread(copy_plainly, addresses.plain_port, mapped)
    else:
        await _fetch_all(settings, plane)
    return time.perf_counter() - begun_s


async def _fetch_all(settings: ThroughputSettings, plane: DataPlane) -> None:
    """As a worker does before a prefill: asked, copied, verified, and confirmed in the store."""
    wanted: list[RemoteSegment] = []
    for index in range(settings.num_segments):
        key, tokens = segment_tokens(index, settings.segment_tokens)
        wanted.append(
            RemoteSegment(key=key, token_bytes=tokens, source=Source.FETCH, from_worker=SOURCE.worker_id, keep=False)
        )
    async with plane.fetcher.bring(RequestId("bench"), wanted, _LIMIT_S) as results:
        failed = [result for result in results.values() if not isinstance(result, Brought)]
    if failed:
        raise SceneError(f"{len(failed)} of {settings.num_segments} segments did not come: {failed[0]}")


@asynccontextmanager
async def _home_plane(
    settings: ThroughputSettings, transport: str, secret_file: Path, memory: BenchMemory, source: DataPlaneCard
) -> AsyncIterator[DataPlane]:
    plane = await start_data_plane(
        DataPlaneSettings.model_validate(
            {"transport": transport, "secret_file": str(secret_file), "stall_s": 30.0, "veto_ratio": 1000.0}
        ),
        _HOME,
        memory.shape,
        catalogue=PageStore(settings.num_pages, settings.page_tokens),
        directory=FixedDirectory({SOURCE.worker_id: source}),
        clock=time.monotonic,
    )
    try:
        yield plane
    finally:
        await plane.close()


@contextmanager
def _source(settings: ThroughputSettings, secret_file: Path) -> Iterator[SourceAddresses]:
    command = (
        sys.executable, "-m", "nebula_bench.data_plane.source_process", settings.model_dump_json(), str(secret_file),
    )  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        try:
            yield _read_addresses(process)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def _read_addresses(process: "subprocess.Popen[bytes]") -> SourceAddresses:
    if process.stdout is not None:
        for line in process.stdout:
            # Others in the process may write lines, too.
            if line.startswith(b"{"):
                return msgspec.json.decode(line, type=SourceAddresses)
    raise SceneError("the source's process does not start")
