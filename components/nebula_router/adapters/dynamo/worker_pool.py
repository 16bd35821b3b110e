"""The workers of one role, through Dynamo's discovery and request plane."""

from collections.abc import AsyncGenerator, Mapping
from typing import Self

from dynamo.llm.exceptions import DynamoException
from dynamo.runtime import Client, Context, DistributedRuntime

from nebula_protocol.ids import WorkerId
from nebula_router.errors import RouterError, WorkerGoneError, WorkerRefusedError
from nebula_router.ports import JsonObject, Origin

# Dynamo's error types that say that the worker is not there or left before the end. Those with "Backend" are raised in
# the worker's process: the others are what an engine raises in some trouble of its own.
_GONE = frozenset(
    {
        "CannotConnect",
        "Disconnected",
        "ConnectionTimeout",
        "ResponseTimeout",
        "Unavailable",
        "EngineShutdown",
        "StreamIncomplete",
        "BackendEngineShutdown",
        "BackendStreamIncomplete",
    }
)

_BLAMES_REQUEST = "BackendInvalidArgument"


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

    async def generate(
        self, worker_id: WorkerId, request: Mapping[str, object], origin: Origin = None, id_suffix: str = ""
    ) -> AsyncGenerator[JsonObject, None]:
        # Its own, so that one request to a worker is stopped without the others that serve the same client.
        context = origin.detached(f"{origin.id()}{id_suffix}") if isinstance(origin, Context) else Context()
        ended = False
        try:
            stream = await self._client.direct(request, worker_id, annotated=False, context=context)
            async for chunk in stream:
                if not isinstance(chunk, dict):
                    raise WorkerRefusedError(worker_id, f"a chunk is a {type(chunk).__name__}, not an object")
                yield chunk
            ended = True
        except RouterError:
            raise
        except Exception as error:
            # Dynamo raises plain `Exception` for unreachable workers.
            ended = True
            raise _translate(worker_id, error) from error
        finally:
            if not ended:
                # Left alone, Dynamo tells the worker only when it has a next chunk to send.
                context.stop_generating()


def _translate(worker_id: WorkerId, error: Exception) -> WorkerGoneError | WorkerRefusedError:
    """Errors of the request plane are untyped; their text begins with Dynamo's name of the type, if it has one."""
    text = str(error)
    kind = type(error).__name__ if isinstance(error, DynamoException) else text.partition(":")[0]
    # A worker's own errors always bring a name: this is one of the router's own socket.
    is_socket_error = type(error) is Exception and "(os error " in text
    if kind in _GONE or is_socket_error:
        return WorkerGoneError(worker_id, text)
    return WorkerRefusedError(worker_id, text, blames_request=kind == _BLAMES_REQUEST)
