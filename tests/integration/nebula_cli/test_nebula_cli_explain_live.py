"""`nebula explain` as a process of its own, on a real nats-server."""

import asyncio
import sys
from pathlib import Path

import msgspec
import nats
import pytest
from support.told_decisions import NAMESPACE, candidate, decision, lines_of, message_of

from nebula_protocol.events import Decision
from nebula_protocol.subjects import Topic, event_subject

pytestmark = pytest.mark.integration


async def start(folder: Path, url: str, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nebula_cli", "explain", "--nats", url, *options),
        cwd=folder,
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def publish_until_exit(url: str, process: asyncio.subprocess.Process, *decisions: Decision) -> None:
    """Again and again, for a subscription made later sees nothing of before; and messages that nobody can read."""
    client = await nats.connect(url)
    while process.returncode is None:
        await client.publish(event_subject(NAMESPACE, "router", "generate", Topic.DECISIONS), b"\xc1")
        for one in decisions:
            await client.publish(*message_of(Topic.DECISIONS, one))
        await asyncio.sleep(0.05)
    await client.close()


async def explained(folder: Path, url: str, *options: str) -> tuple[int, str, str]:
    """Exit code and both streams, while decisions about three requests are published."""
    decisions = [decision(candidate(number, compute_ms=50), request_id=f"request-{number}") for number in (1, 2, 3)]
    process = await start(folder, url, *options)
    publishing = asyncio.create_task(publish_until_exit(url, process, *decisions))
    out, err = await asyncio.wait_for(process.communicate(), 60)
    await publishing
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_next_decision_is_explained_and_the_command_ends(tmp_path: Path, nats_url: str) -> None:
    exit_code, output, errors = await explained(tmp_path, nats_url)
    assert exit_code == 0
    assert output.count(" request request-") == 1
    assert "Why" in output
    assert "skipped a message" in errors


async def test_the_named_request_is_waited_for(tmp_path: Path, nats_url: str) -> None:
    exit_code, output, _ = await explained(tmp_path, nats_url, "request-3", "--json", "--count", "2")
    lines = [msgspec.json.decode(line) for line in output.splitlines()]
    assert (exit_code, [line["decision"]["request_id"] for line in lines]) == (0, ["request-3"] * 2)


async def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path: Path) -> None:
    told = decision(candidate(1, compute_ms=50))
    (tmp_path / "events.jsonl").write_text(lines_of(message_of(Topic.DECISIONS, told)) * 2_000)
    command = f"'{sys.executable}' -m nebula_cli explain --json --file events.jsonl 2>errors | head -n 1"
    process = await asyncio.create_subprocess_shell(
        command, cwd=tmp_path, env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}, stdout=-1
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert len(out.splitlines()) == 1
    assert (tmp_path / "errors").read_text() == ""


async def test_a_request_that_does_not_come_ends_with_code_1_and_says_how_to_look_back(
    tmp_path: Path, nats_url: str
) -> None:
    exit_code, output, errors = await explained(tmp_path, nats_url, "request-4", "--timeout", "0.3")
    assert (exit_code, output) == (1, "")
    last = errors.splitlines()[-1]
    assert last.startswith("nebula: no decision about a request 'request-4' within 0.3 s.")
    assert "nebula events --json > FILE" in last
