"""The other worker of the benchmark: serves its memory on all transports until its standard input ends.

`python -m nebula_bench.data_plane.source_process SETTINGS_JSON SECRET_FILE`; says in one line where.
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack

import msgspec
import uvloop

from nebula_bench.data_plane.bench_memory import BenchMemory
from nebula_bench.data_plane.page_store import BENCH_DOMAIN, PageStore, segment_tokens
from nebula_bench.data_plane.plain_copy import PlainSource
from nebula_bench.data_plane.settings import ThroughputSettings
from nebula_protocol.data_plane import DataPlaneCard
from nebula_protocol.ids import WorkerEpoch, WorkerId
from pic_worker.adapters.data_plane import WorkerIdentity, start_data_plane
from pic_worker.adapters.fixed_directory import FixedDirectory
from pic_worker.adapters.mapped_pages import MappedPages
from pic_worker.data_plane_settings import DataPlaneSettings

SOURCE = WorkerIdentity(worker_id=WorkerId(1), epoch=WorkerEpoch(1), domain_id=BENCH_DOMAIN)


class SourceAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """What the process says when it is ready."""

    plain_port: int
    cards: dict[str, DataPlaneCard]
    """By transport."""


async def serve(settings: ThroughputSettings, secret_file: str) -> None:
    async with AsyncExitStack() as started:
        memory = started.enter_context(BenchMemory(settings.num_pages, settings.page_tokens, settings.page_bytes))
        memory.fill()
        mapped = MappedPages(memory.shape.arena_paths, settings.page_bytes)
        started.callback(mapped.close)
        plain = PlainSource(mapped)
        started.callback(plain.close)
        store = PageStore(settings.num_pages, settings.page_tokens)
        for index in range(settings.num_segments):
            key, tokens = segment_tokens(index, settings.segment_tokens)
            store.put(key, tokens, settings.segment_tokens)
        cards: dict[str, DataPlaneCard] = {}
        for transport in settings.transports:
            plane = await start_data_plane(
                DataPlaneSettings(transport=transport, secret_file=secret_file, lease_s=60.0, stall_s=30.0),
                SOURCE,
                memory.shape,
                catalogue=store,
                directory=FixedDirectory(),
                clock=time.monotonic,
            )
            started.push_async_callback(plane.close)
            cards[transport] = plane.card
        sys.stdout.buffer.write(msgspec.json.encode(SourceAddresses(plain_port=plain.port, cards=cards)) + b"\n")
        sys.stdout.buffer.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve(ThroughputSettings.model_validate_json(sys.argv[1]), sys.argv[2]))
