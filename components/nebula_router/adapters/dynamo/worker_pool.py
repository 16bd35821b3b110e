"""The workers of one role, through Dynamo's discovery and request plane."""

from collections.abc import AsyncIterator, Mapping
from typing import Self

from dynamo.llm.exceptions import (
    CannotConnect,
    ConnectionTimeout,
    Disconnected,
    DynamoException,
    EngineShutdown,
    StreamIncomplete,
)
from dynamo.runtime import Client, DistributedRuntime

from nebula_protocol.ids import WorkerId
from nebula_router.errors import WorkerGoneError, WorkerRefusedError
from nebula_router.ports import JsonObject

_GONE = (CannotConnect, ConnectionTimeout, Disconnected, EngineShutdown, StreamIncomplete)


class DynamoWorkerPool:
    """`WorkerPool` over one Dynamo endpoint."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    async def watch(cls, runtime: DistributedRuntime, endpoint_path: str) -> Self:
        """Follows `namespace.component.endpoint` in discovery."""
        return cls(await runtime.endpoint(endpoint_path).client())

    def live_workers(self) -> frozenset[WorkerId]:
        return frozenset(WorkerId(instance_id) for instance_id in self._client.instance_ids())

    async def generate(self, worker_id: WorkerId, request: Mapping[str, object]) -> AsyncIterator[JsonObject]:
        try:
            stream = await self._client.direct(request, worker_id, annotated=False)
            async for chunk in stream:
                if not isinstance(chunk, dict):
                    raise WorkerRefusedError(worker_id, f"a chunk is a {type(chunk).__name__}, not an object")
                yield chunk
        except _GONE as error:
            raise WorkerGoneError(worker_id, str(error)) from error
        except (DynamoException, ValueError, RuntimeError) as error:
            raise _translate(worker_id, error) from error


def _translate(worker_id: WorkerId, error: Exception) -> WorkerGoneError | WorkerRefusedError:
    """Dynamo reports an unreachable instance in several untyped ways; their texts are told apart here."""
    text = str(error)
    unreachable = ("not found", "Connection refused", "No route", "no instances", "Broken pipe", "reset by peer")
    if any(sign.lower() in text.lower() for sign in unreachable):
        return WorkerGoneError(worker_id, text)
    return WorkerRefusedError(worker_id, text)
