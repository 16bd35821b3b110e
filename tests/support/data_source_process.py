"""A source of segments in a process of its own: a test kills it, freezes it and asks what it still holds.

Arguments: transport, secret file, number of segments, tokens of each, lease in seconds. Says {"card": ...} when it
serves, and answers each line {"ask": "state"} with what is taken.
"""

import asyncio
import base64
import os
import sys
import time
from pathlib import Path

import msgspec
from support.data_node import ArenaFiles, Directory, kv_bytes
from support.data_store import DOMAIN, PAGE_TOKENS, FakeStore, tokens_of
from support.json_process import write_line

from nebula_protocol.ids import WorkerEpoch, WorkerId
from pic_worker.adapters.data_plane import StoreShape, WorkerIdentity, start_data_plane
from pic_worker.data_plane_settings import DataPlaneSettings

SOURCE = WorkerId(77)
PAGE_BYTES = 1 << 18


def tokens_of_segment(seed: int, num_tokens: int) -> bytes:
    return tokens_of(10_000 * seed, num_tokens)


async def serve(transport: str, secret_file: str, num_segments: int, num_tokens: int, lease_s: float) -> None:
    num_pages = num_segments * -(-num_tokens // PAGE_TOKENS)
    memory, store = ArenaFiles(num_pages, PAGE_BYTES), FakeStore(num_pages)
    for seed in range(1, num_segments + 1):
        segment = store.put(tokens_of_segment(seed, num_tokens))
        for rank in range(memory.num_ranks):
            for number, page in enumerate(segment.pages):
                memory.view(rank, page, 1)[:] = kv_bytes(seed, rank, number, PAGE_BYTES)
    settings = DataPlaneSettings.model_validate(
        {"transport": transport, "secret_file": secret_file, "lease_s": lease_s, "stall_s": 3.0}
    )
    plane = await start_data_plane(
        settings,
        WorkerIdentity(worker_id=SOURCE, epoch=WorkerEpoch(time.monotonic_ns()), domain_id=DOMAIN),
        StoreShape(arena_paths=memory.paths, page_tokens=PAGE_TOKENS, page_bytes=PAGE_BYTES),
        catalogue=store,
        directory=Directory(),
        clock=time.monotonic,
    )
    card = base64.b64encode(msgspec.msgpack.encode(plane.card)).decode()
    write_line({"card": card, "pid": os.getpid()})
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        write_line({"pins": store.num_pins, "leases": len(store.leases), "server_leases": plane.segments.num_leases})
    await plane.close()
    memory.close()


if __name__ == "__main__":
    transport, secret_file, num_segments, num_tokens, lease_s = sys.argv[1:]
    asyncio.run(serve(transport, str(Path(secret_file)), int(num_segments), int(num_tokens), float(lease_s)))
