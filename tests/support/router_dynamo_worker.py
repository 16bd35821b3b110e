"""A tiny worker on Dynamo's runtime: `python router_dynamo_worker.py ENDPOINT ROLE`.

It does what the request's `extra_args.script` names for its role, and tells in lines of JSON what becomes of requests.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping

from dynamo.llm.exceptions import EngineShutdown, InvalidArgument
from dynamo.runtime import Context, DistributedRuntime
from support.json_process import write_line
from support.router_replies import prefill_reply

from nebula_protocol.ids import WorkerId

Chunk = Mapping[str, object]
ERRORS: Mapping[str, Callable[[], Exception]] = {
    "refuse": lambda: InvalidArgument("the prompt is odd"),
    "fail": lambda: RuntimeError("not found: Connection refused"),
    "shut down": lambda: EngineShutdown("going down"),
}
PLAIN = ({"token_ids": [1]}, {"token_ids": [2], "finish_reason": "length"})


class TinyWorker:
    def __init__(self, worker_id: WorkerId, role: str) -> None:
        self._worker_id = worker_id
        self._role = role

    async def generate(self, request: dict[str, object], context: Context) -> AsyncIterator[Chunk]:
        script = self._script_of(request)
        write_line({"event": "started", "script": script, "id": context.id(), "trace": context.trace_id})
        if script in ERRORS:
            raise ERRORS[script]()
        chunks = self._chunks(request, script)
        if script.startswith("hang"):
            for chunk in chunks[: int(script.removeprefix("hang "))]:
                yield chunk
            await context.async_killed_or_stopped()
            write_line({"event": "stopped"})
            return
        for chunk in chunks:
            yield chunk
        if script == "break":
            raise InvalidArgument("broken off")

    def _script_of(self, request: Mapping[str, object]) -> str:
        extra_args = request.get("extra_args")
        script = extra_args.get("script") if isinstance(extra_args, dict) else None
        if isinstance(script, dict):
            script = script.get(self._role)
        return script if isinstance(script, str) else "reply"

    def _chunks(self, request: Mapping[str, object], script: str) -> list[Chunk]:
        if script == "nothing":
            return []
        if script == "no object":
            return [[1, 2]]  # type: ignore[list-item]
        if "token_ids" not in request:
            return list(PLAIN)
        return list(prefill_reply(self._worker_id, request))


async def serve(endpoint_path: str, role: str) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    endpoint = runtime.endpoint(endpoint_path)
    worker_id = WorkerId(endpoint.connection_id())
    write_line({"event": "serving", "worker_id": worker_id})
    await endpoint.serve_endpoint(TinyWorker(worker_id, role).generate)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
