"""A worker's block events through Dynamo's own publisher, as they come off a real NATS server."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from dynamo.llm import compute_block_hash_for_seq
from support import block_events_process
from support.block_events_process import COMPONENT, Published, Report
from support.engine_world import BLOCK

from nebula_nats.connection import connect, flush
from nebula_protocol.codec import decode
from nebula_protocol.events import BlocksStored, Envelope, KvEventData, WorkerKvEvent
from nebula_protocol.subjects import Topic, event_subject

pytestmark = pytest.mark.integration

TIMEOUT_S = 30
SCRIPT = Path(block_events_process.__file__)


@dataclass(frozen=True, slots=True)
class Arrived:
    """What the engine gave, and what NATS brought of it."""

    report: Report
    envelopes: list[Envelope]
    messages: list[list[WorkerKvEvent]]
    """One list a message."""

    @property
    def events(self) -> list[WorkerKvEvent]:
        return [event for message in self.messages for event in message]

    def stored(self) -> list[tuple[Published, BlocksStored]]:
        """Each stored event of the engine with its form on the wire."""
        pairs = []
        for given, arrived in zip(self.report.events, self.events, strict=True):
            data = arrived.event.data
            if isinstance(data, KvEventData) and data.stored is not None:
                pairs.append((given, data.stored))
        return pairs


@asynccontextmanager
async def publishing_process(nats_url: str, namespace: str, folder: Path) -> AsyncIterator[Report]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SCRIPT), namespace),
        env={
            "PYTHONPATH": ":".join(sys.path),
            "NATS_SERVER": nats_url,
            "DYN_EVENT_PLANE": "nats",
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
        yield msgspec.json.decode(line, type=Report)
        process.stdin.close()
        await asyncio.wait_for(process.wait(), TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture(scope="module")
def arrived(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> Arrived:
    """One run of the process for all tests."""
    return asyncio.run(collect(nats_url, tmp_path_factory.mktemp("dynamo")))


async def collect(nats_url: str, folder: Path) -> Arrived:
    namespace = f"ns-{uuid4().hex}"
    client = await connect(nats_url, "test")
    subscription = await client.subscribe(event_subject(namespace, COMPONENT, "generate", Topic.KV_EVENTS))
    await flush(client)
    envelopes: list[Envelope] = []
    messages: list[list[WorkerKvEvent]] = []
    async with publishing_process(nats_url, namespace, folder) as report:
        while sum(map(len, messages)) < len(report.events):
            message = await subscription.next_msg(timeout=TIMEOUT_S)
            envelopes.append(decode(message.data, Envelope))
            messages.append(decode(envelopes[-1].payload, list[WorkerKvEvent]))
    await client.close()
    return Arrived(report, envelopes, messages)


def test_the_engine_had_something_of_every_kind_to_tell(arrived: Arrived) -> None:
    given = arrived.report.events
    assert {event.lineage for event in given} == {"", "exact/", "tenant/acme"}
    assert any(event.parent_hash is not None for event in given)
    assert any(event.tokens_hashes is None for event in given)


def test_every_call_is_one_event_on_the_subject_of_the_generate_endpoint(arrived: Arrived) -> None:
    kinds = [event.event.data for event in arrived.events]
    assert len(kinds) == len(arrived.report.events)
    for given, data in zip(arrived.report.events, kinds, strict=True):
        assert isinstance(data, KvEventData)
        assert (data.stored is None, data.removed is None) == (
            given.tokens_hashes is None,
            given.tokens_hashes is not None,
        )


def test_dynamo_counts_events_from_1_as_the_engine_does(arrived: Arrived) -> None:
    num_events = len(arrived.report.events)
    assert [event.event.event_id for event in arrived.events] == list(range(1, num_events + 1))
    assert [event.event_id for event in arrived.report.events] == list(range(1, num_events + 1))


def test_events_are_of_the_workers_device_tier(arrived: Arrived) -> None:
    assert {(event.worker_id, event.storage_tier, event.event.dp_rank) for event in arrived.events} == {
        (arrived.report.worker_id, "device", 0)
    }
    assert {envelope.topic for envelope in arrived.envelopes} == {Topic.KV_EVENTS}


def test_stored_blocks_keep_their_names_their_parent_and_their_hashes(arrived: Arrived) -> None:
    for given, wire in arrived.stored():
        assert [block.block_hash for block in wire.blocks] == given.block_hashes
        assert [block.tokens_hash for block in wire.blocks] == given.tokens_hashes
        assert wire.parent_hash == given.parent_hash


def test_removed_blocks_keep_their_names(arrived: Arrived) -> None:
    for given, event in zip(arrived.report.events, arrived.events, strict=True):
        if given.tokens_hashes is None:
            data = event.event.data
            assert isinstance(data, KvEventData)
            assert data.removed is not None
            assert list(data.removed.block_hashes) == given.block_hashes


@pytest.mark.parametrize("lineage", ["", "exact/", "tenant/acme"])
def test_a_cache_salt_hashes_tokens_as_a_cache_namespace_does(arrived: Arrived, lineage: str) -> None:
    of_lineage = [(given, wire) for given, wire in arrived.stored() if given.lineage == lineage]
    assert of_lineage
    for given, wire in of_lineage:
        assert given.token_ids is not None
        expected = compute_block_hash_for_seq(given.token_ids, BLOCK, cache_namespace=lineage or None)
        assert [block.tokens_hash for block in wire.blocks] == expected
