"""A process with Dynamo's runtime that publishes the block events of a small engine, and tells what they were.

`python block_events_process.py NAMESPACE` writes one line, a `Report` in JSON, and ends when its input does. Dynamo
takes one runtime a process and reads its environment when that starts, so tests cannot hold it themselves.
"""

import asyncio
import sys

import msgspec
import numpy as np
from dynamo.llm import KvEventPublisher
from dynamo.runtime import DistributedRuntime
from support.engine_world import BLOCK, EngineWorld, passage

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.ids import DomainId, RequestId
from nebula_protocol.tokens import TokenArray
from pic_worker.adapters.dynamo.block_events import DynamoBlockEvents, hash_salted_blocks
from pic_worker.core.effects import DeviceEvent, KvStored
from pic_worker.prompt_cutter import PromptCutter

COMPONENT = "prefill"
EXACT = RequestOptions(pic=False)
TENANT = RequestOptions(cache_salt="acme")
COMMON = RequestOptions()
PROMPTS: tuple[tuple[TokenArray, RequestOptions], ...] = (
    (passage(0, 32), COMMON),
    # Continues the first one, then in two lineages of their own.
    (np.concatenate((passage(0, 32), passage(1, 10))), COMMON),
    (passage(0, 32), EXACT),
    (passage(0, 32), TENANT),
    # Drives others out: that makes 10 + 8 + 8 + 10 blocks, and there is room for 25.
    (passage(2, 40), COMMON),
)
NUM_DEVICE_BLOCKS = 25


class Published(msgspec.Struct):
    """A device event as the engine gave it."""

    event_id: int
    block_hashes: list[int]
    lineage: str = ""
    parent_hash: int | None = None
    tokens_hashes: list[int] | None = None
    """None for a removal."""
    token_ids: list[int] | None = None


class Report(msgspec.Struct):
    worker_id: int
    events: list[Published]


def engine_events() -> list[DeviceEvent]:
    """What the engine tells of its device tier while it serves the prompts one after another."""
    world = EngineWorld(device_capacity_tokens=NUM_DEVICE_BLOCKS * BLOCK)
    config = CutterConfig(content_chunks=None, message_starts=((999,),), min_segment_tokens=1000)
    cutter = PromptCutter(config, BLOCK, DomainId("domain"), True, hash_salted_blocks)
    for number, (tokens, options) in enumerate(PROMPTS):
        request_id = RequestId(f"r{number}")
        world.serve(cutter.engine_request(request_id, tokens, options, None))
        world.engine.prompt_pulled(request_id)
    return [event for event in world.events if not isinstance(event, msgspec.Struct)]


def published(event: DeviceEvent) -> Published:
    if not isinstance(event, KvStored):
        return Published(event.event_id, list(event.block_hashes))
    return Published(
        event.event_id,
        list(event.block_hashes),
        event.lineage,
        event.parent_hash,
        list(event.tokens_hashes),
        event.tokens.tolist(),
    )


async def publish(namespace: str) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    endpoint = runtime.endpoint(f"{namespace}.{COMPONENT}.generate")
    publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK, enable_local_indexer=True)
    block_events, events = DynamoBlockEvents(BLOCK), engine_events()
    # The engine may be quicker than Dynamo with its publisher.
    for event in events[:2]:
        block_events.publish(event)
    block_events.attach(publisher)
    for event in events[2:]:
        block_events.publish(event)
    report = Report(endpoint.connection_id(), list(map(published, events)))
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    runtime.shutdown()


if __name__ == "__main__":
    asyncio.run(publish(sys.argv[1]))
