"""`nebula events` as a process of its own, on a real nats-server and Dynamo's own publisher."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import nats
import pytest

from nebula_protocol.codec import encode
from nebula_protocol.events import Envelope, PicEvent, SegmentStored, WorkerPicEvents
from nebula_protocol.ids import DomainId, EventId, Origin, SegmentHash, WorkerEpoch, WorkerId
from nebula_protocol.subjects import Topic, event_subject
from nebula_serve.nats import find_nats_server

pytestmark = pytest.mark.integration

WORKER = WorkerId(0x1E9B579EE39D8707)
SEGMENT = SegmentHash(bytes.fromhex("3f2a91c0" + "11" * 12))

# Publishes again and again, for a subscription made later sees nothing of before.
DYNAMO_PUBLISHER = """
import asyncio, sys
from dynamo.llm import KvEventPublisher
from dynamo.runtime import DistributedRuntime

async def main():
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    publisher = KvEventPublisher(runtime.endpoint("nebula_pool.prefill.generate"), kv_block_size=16)
    while True:
        publisher.publish_stored(list(range(32)), [16, 16], [1, -2])
        publisher.publish_removed([-2])
        await asyncio.sleep(0.05)

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    process: asyncio.subprocess.Process

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(find_nats_server(), "--addr", "127.0.0.1", "--port", str(port)), cwd=tmp_path, stdout=-3, stderr=-3
    )
    server = Server(f"nats://127.0.0.1:{port}", process)
    client = await nats.connect(server.url, max_reconnect_attempts=100, reconnect_time_wait=0.05)
    await client.close()
    yield server
    await server.stop()


@pytest.fixture
def nats_url(server: Server) -> str:
    return server.url


async def start_events(folder: Path, *options: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nebula_cli", "events", *options),
        cwd=folder,
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def finish(process: asyncio.subprocess.Process) -> tuple[int, list[str], list[str]]:
    """Exit code and the lines of both streams."""
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode or 0, out.decode().splitlines(), err.decode().splitlines()


async def publish_until_exit(url: str, process: asyncio.subprocess.Process) -> None:
    """A stored segment, and before each a message that nobody can read."""
    event = SegmentStored(segment_hash=SEGMENT, domain_id=DomainId("d"), num_tokens=334, origin=Origin.IN_CONTEXT)
    message = WorkerPicEvents(
        worker_id=WORKER, epoch=WorkerEpoch(1), events=(PicEvent(event_id=EventId(4), data=event),)
    )
    envelope = Envelope(publisher_id=1, sequence=0, published_at=0, topic=Topic.PIC_EVENTS, payload=encode(message))
    subject = event_subject("nebula_pool", "prefill", "generate", Topic.PIC_EVENTS)
    client = await nats.connect(url)
    while process.returncode is None:
        await client.publish(subject, b"\xc1")
        await client.publish(subject, encode(envelope))
        await asyncio.sleep(0.05)
    await client.close()


async def test_dynamos_own_kv_events_are_printed_and_the_command_stops_after_n(tmp_path: Path, nats_url: str) -> None:
    publisher = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DYNAMO_PUBLISHER),
        env={
            "NATS_SERVER": nats_url,
            "DYN_EVENT_PLANE": "nats",
            "DYN_FILE_KV": str(tmp_path / "discovery"),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        process = await start_events(tmp_path, "--json", "--count", "4", "--topic", "kv-events", NATS_SERVER=nats_url)
        exit_code, lines, _ = await finish(process)
    finally:
        publisher.kill()
        await publisher.wait()
    assert exit_code == 0
    events = [msgspec.json.decode(line) for line in lines]
    assert len(events) == 4
    assert {event["component"] for event in events} == {"prefill"}
    stored = next(event["event"]["data"]["stored"] for event in events if event["event"]["data"]["stored"])
    # Signed -2 is the unsigned 64-bit number 2**64 - 2 on the wire.
    assert [block["block_hash"] for block in stored["blocks"]] == [1, 2**64 - 2]


async def test_segment_events_are_lines_without_colours_and_unreadable_messages_are_told(
    tmp_path: Path, nats_url: str
) -> None:
    process = await start_events(tmp_path, "--nats", nats_url, "--count", "2", "--worker", "9d8707")
    publishing = asyncio.create_task(publish_until_exit(nats_url, process))
    exit_code, lines, errors = await finish(process)
    await publishing
    assert exit_code == 0
    assert len(lines) == 2
    assert lines[0].endswith("pic-events  prefill/9d8707  segment_stored 3f2a91c0… 334 tokens in_context  #4")
    assert "skipped a message" in errors[0]


async def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path: Path, nats_url: str) -> None:
    command = f"'{sys.executable}' -m nebula_cli events --nats {nats_url} --topic pic-events 2>errors | head -n 1"
    process = await asyncio.create_subprocess_shell(
        command, cwd=tmp_path, env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}, stdout=-1, stderr=-1
    )
    publishing = asyncio.create_task(publish_until_exit(nats_url, process))
    exit_code, lines, _ = await finish(process)
    await publishing
    assert (exit_code, len(lines)) == (0, 1)
    assert "Traceback" not in (tmp_path / "errors").read_text()
    assert "BrokenPipe" not in (tmp_path / "errors").read_text()


async def test_a_server_that_stops_ends_the_command_with_code_1(tmp_path: Path, server: Server) -> None:
    url = server.url.replace("//", "//user:secret@")
    process = await start_events(tmp_path, "--nats", url)
    publishing = asyncio.create_task(publish_until_exit(server.url, process))
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), 20)
    publishing.cancel()
    await server.stop()
    exit_code, _, errors = await finish(process)
    assert exit_code == 1
    assert errors[-1] == f"nebula: the NATS server at {server.url.removeprefix('nats://')} closed the connection"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "no NATS server is known"),
        (("--nats", "nats://user:secret@127.0.0.1:9"), "no NATS server at 127.0.0.1:9"),
        (("--graph", "nebula"), "graph 'nebula' does not run"),
        (("--follow", "--count", "3"), "exclude each other"),
        (("--request", "r", "--topic", "kv-events"), "exclude each other"),
    ],
)
async def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path: Path, options: tuple[str, ...], reason: str) -> None:
    exit_code, lines, errors = await finish(await start_events(tmp_path, *options))
    assert (exit_code, lines) == (2, [])
    (line,) = errors
    assert reason in line
    assert "secret" not in line
