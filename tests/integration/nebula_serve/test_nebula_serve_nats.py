"""The embedded NATS server and the probes, over real sockets."""

import asyncio
import io
from pathlib import Path

import nats
import pytest

from nebula_serve.console import Console
from nebula_serve.graph import Graph
from nebula_serve.listening import find_free_port
from nebula_serve.nats import NATS, NatsSettings
from nebula_serve.planes import open_planes
from nebula_serve.process_plan import plan_processes, with_chosen_ports
from nebula_serve.readiness import ModelListedProbe, NatsGreetingProbe
from nebula_serve.resolve import ResolvedGraph, ResolvedService
from nebula_serve.run_directory import RunDirectory
from nebula_serve.shared_settings import CommonSettings
from nebula_serve.supervisor import Supervisor

pytestmark = pytest.mark.integration


async def test_the_embedded_server_carries_a_message_on_its_free_port(tmp_path: Path) -> None:
    graph = Graph(name="g", description="", services=(), planes=(NATS,))
    resolved = ResolvedGraph(graph, CommonSettings(), (ResolvedService(NATS, NatsSettings(), 1),))
    (service,) = with_chosen_ports(resolved, ["Nats"]).services
    assert isinstance(service.settings, NatsSettings)
    planes = open_planes({}, service.settings, tmp_path)
    specs = plan_processes(service, CommonSettings(), planes, RunDirectory(tmp_path), {})
    ready = asyncio.Event()
    log = io.StringIO()
    supervisor = Supervisor([specs], tmp_path, Console(log, [], width=4), on_ready=ready.set)
    running = asyncio.create_task(supervisor.run())
    await asyncio.wait_for(ready.wait(), 10)
    client = await nats.connect(planes.nats_url)
    subscription = await client.subscribe("x")
    await client.publish("x", b"hello")
    assert (await subscription.next_msg(timeout=2)).data == b"hello"
    await client.close()
    supervisor.request_stop("test")
    await asyncio.wait_for(running, 10)
    assert "Nats  | " in log.getvalue()


async def test_a_server_that_does_not_greet_is_not_ready() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = int(server.sockets[0].getsockname()[1])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(NatsGreetingProbe("127.0.0.1", port).wait_until_ready(), 0.3)


async def test_a_frontend_is_ready_once_it_lists_the_model() -> None:
    answers = iter(
        [
            b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnope",
            b'HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{"data":[]}',
            b'HTTP/1.1 200 OK\r\ncontent-length: 21\r\n\r\n{"data":[{"id":"m1"}]}'[:-1] + b"}",
            b'HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{"data":[{"id":"m"}]}'[:-1],
            b'HTTP/1.1 200 OK\r\ncontent-length: 21\r\n\r\n{"data":[{"id":"m"}]}',
        ]
    )
    paths = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        paths.append(head.split()[1])
        writer.write(next(answers))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = int(server.sockets[0].getsockname()[1])
        await asyncio.wait_for(ModelListedProbe(f"http://127.0.0.1:{port}", "m").wait_until_ready(), 10)
    assert set(paths) == {b"/v1/models"}
    assert next(answers, None) is None


async def test_nobody_listening_is_not_ready() -> None:
    port = find_free_port()
    for probe in (NatsGreetingProbe("127.0.0.1", port), ModelListedProbe(f"http://127.0.0.1:{port}", "m")):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(probe.wait_until_ready(), 0.3)
