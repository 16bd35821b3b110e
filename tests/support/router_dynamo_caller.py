"""A process with a `DynamoWorkerPool`, which does as it is told: `python router_dynamo_caller.py ENDPOINT`.

Lines that it takes: `{"do": "list"}`, `{"do": "call", "name", "worker_id", "request", "num_chunks"}` and
`{"do": "cancel", "name"}`. A call with `num_chunks` is closed after so many.
"""

import asyncio
import sys
import time
from contextlib import aclosing

import msgspec
from dynamo.runtime import DistributedRuntime
from support.json_process import write_line

from nebula_protocol.ids import WorkerId
from nebula_router.adapters.dynamo.worker_pool import DynamoWorkerPool
from nebula_router.errors import WorkerGoneError, WorkerRefusedError


class Command(msgspec.Struct):
    do: str
    name: str = ""
    worker_id: int = 0
    request: dict[str, object] = {}
    num_chunks: int | None = None


class Caller:
    def __init__(self, pool: DynamoWorkerPool) -> None:
        self._pool = pool
        self._calls: dict[str, asyncio.Task[None]] = {}

    def obey(self, command: Command) -> None:
        match command.do:
            case "list":
                write_line({"live": sorted(self._pool.live_workers())})
            case "call":
                self._calls[command.name] = asyncio.create_task(self._call(command))
            case "cancel":
                self._calls[command.name].cancel()

    async def _call(self, command: Command) -> None:
        chunks: list[object] = []
        began_s = time.monotonic()
        ending, reason = "done", ""
        try:
            async with aclosing(self._pool.generate(WorkerId(command.worker_id), command.request)) as stream:
                async for chunk in stream:
                    chunks.append(chunk)
                    write_line({"call": command.name, "chunk": len(chunks)})
                    if len(chunks) == command.num_chunks:
                        ending = "closed"
                        break
        except WorkerGoneError as error:
            ending, reason = "gone", str(error)
        except WorkerRefusedError as error:
            ending, reason = "refused", error.reason
        except asyncio.CancelledError:
            ending = "cancelled"
        took_s = time.monotonic() - began_s
        write_line({"ended": command.name, "how": ending, "reason": reason, "chunks": chunks, "took_s": took_s})


async def run(endpoint_path: str) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    caller = Caller(await DynamoWorkerPool.watch(runtime, endpoint_path))
    write_line({"event": "ready"})
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        caller.obey(msgspec.json.decode(line, type=Command))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
