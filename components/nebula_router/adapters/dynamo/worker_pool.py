"""The workers of one role, through Dynamo's discovery and request plane."""

from collections.abc import AsyncGenerator, Mapping
from typing import Self

from dynamo.runtime import Client, Context, DistributedRuntime

from nebula_protocol.ids import WorkerId
from nebula_router.adapters.dynamo.worker_errors import translate
from nebula_router.errors import RouterError, WorkerRefusedError
from nebula_router.ports import JsonObject, Origin


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
            raise translate(worker_id, error) from error
        finally:
            if not ended:
                # Left alone, Dynamo tells the worker only when it has a next chunk to send.
                context.stop_generating()
