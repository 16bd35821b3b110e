"""A home of segments in a process of its own: a test kills it while it copies, starts it anew and asks what it holds.

Arguments: transport, the folder of the secret, the source's card in base64. Says {"pid": ...} when it is ready. Each
line is a command: {"do": "fetch"} copies all that the source has, pausing with {"reserved": true} before the first byte
until {"do": "go_on"}, and says {"results": [...]}; {"do": "tell"} says what is taken.
"""

import asyncio
import base64
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from support.data_node import DataWorld, Node, request
from support.data_source import NUM_SEGMENTS, NUM_TOKENS, wanted
from support.data_source_process import PAGE_BYTES, SOURCE, tokens_of_segment
from support.data_store import key_of
from support.json_process import write_line

from nebula_protocol.data_plane import DataPlaneCard
from pic_worker.catalogue import IncomingSegment, Reserved, Unreserved
from pic_worker.segment_flight import Brought

NUM_PAGES = 64
BUDGET_S = 30.0


class PausingHome:
    def __init__(self, home: Node) -> None:
        self._home = home
        self._go_on = asyncio.Event()
        self._reserve = home.store.reserve
        home.store.reserve = self._reserve_and_pause  # type: ignore[method-assign]
        self._fetching: set[asyncio.Task[None]] = set()

    def obey(self, command: str) -> None:
        match command:
            case "fetch":
                self._fetching.add(asyncio.create_task(self._fetch()))
            case "go_on":
                self._go_on.set()
            case "tell":
                write_line(self._held())

    async def _reserve_and_pause(self, segments: Sequence[IncomingSegment]) -> tuple[Reserved | Unreserved, ...]:
        reserved = await self._reserve(segments)
        write_line({"reserved": True})
        await self._go_on.wait()
        return reserved

    async def _fetch(self) -> None:
        async with self._home.fetcher.bring(request(), wanted(), BUDGET_S) as results:
            told = [one.done.value if isinstance(one, Brought) else one.value for one in results.values()]
        write_line({"results": told})

    def _held(self) -> dict[str, object]:
        store = self._home.store
        keys = [key_of(tokens_of_segment(seed, NUM_TOKENS)) for seed in range(1, NUM_SEGMENTS + 1)]
        return {
            "is_clean": store.is_clean and not self._home.fetcher.num_running,
            "lost_pages": NUM_PAGES - len(store.free) - store.num_used_pages,
            "intact": sum(key in store.entries and self._home.has(key, seed) for seed, key in enumerate(keys, start=1)),
        }


async def serve(transport: str, folder: Path, source: DataPlaneCard) -> None:
    world = DataWorld(transport, folder)
    world.directory.cards[SOURCE] = source
    home = PausingHome(await world.start(num_pages=NUM_PAGES, page_bytes=PAGE_BYTES, stall_s=3.0))
    write_line({"pid": os.getpid()})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        home.obey(msgspec.json.decode(line, type=dict[str, str])["do"])
    await world.close()


if __name__ == "__main__":
    kind, world_folder, card = sys.argv[1:]
    asyncio.run(serve(kind, Path(world_folder), msgspec.msgpack.decode(base64.b64decode(card), type=DataPlaneCard)))
