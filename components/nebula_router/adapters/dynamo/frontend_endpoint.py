"""The endpoint that Dynamo's frontend sends tokenized requests to."""

import asyncio
from collections.abc import AsyncGenerator

import structlog
from dynamo.llm.exceptions import HttpError, InvalidArgument
from dynamo.runtime import Context

from nebula_protocol.ids import RequestId, WorkerId
from nebula_router.errors import BadRequestError, NoWorkerError, WorkerRefusedError, WorkersLostError
from nebula_router.ports import JsonObject
from nebula_router.service import RouterService

log = structlog.get_logger()

_PREFILL_WORKER = "prefill_worker_id"


class FrontendEndpoint:
    """Translates between Dynamo's handler contract and the service."""

    def __init__(self, service: RouterService, own_id: WorkerId) -> None:
        self._service = service
        self._own_id = own_id

    # Dynamo looks the second parameter up by this name.
    async def generate(self, request: JsonObject, context: Context) -> AsyncGenerator[JsonObject, None]:
        """One chunk. Ends as soon as the client goes away, although Dynamo itself would look only between two chunks.

        Raises:
            InvalidArgument: becomes a 400 with the text.
            HttpError: 503 without workers, 502 when a worker refused for another reason than the request itself, or
                when the request lost too many.
        """
        request_id = RequestId(context.id())
        serving = asyncio.ensure_future(self._service.handle(self._without_own_id(request), request_id, context))
        stopped = asyncio.ensure_future(context.async_killed_or_stopped())
        try:
            await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                yield _result(request_id, serving)
            else:
                log.info("request_cancelled", request_id=request_id)
        finally:
            stopped.cancel()
            if not serving.done():
                serving.cancel()
                await asyncio.wait((serving,))

    def _without_own_id(self, request: JsonObject) -> JsonObject:
        """The frontend writes the instance that it chose where a client's choice of a worker would stand."""
        routing = request.get("routing")
        if not isinstance(routing, dict) or routing.get(_PREFILL_WORKER) != self._own_id:
            return request
        return {**request, "routing": {key: value for key, value in routing.items() if key != _PREFILL_WORKER}}


def _result(request_id: RequestId, served: "asyncio.Future[JsonObject]") -> JsonObject:
    try:
        return served.result()
    except BadRequestError as error:
        log.info("request_refused", request_id=request_id, reason=str(error))
        raise InvalidArgument(str(error)) from error
    except NoWorkerError as error:
        log.error("request_failed", request_id=request_id, reason=str(error))
        raise HttpError(503, str(error)) from error
    except WorkersLostError as error:
        log.error("request_failed", request_id=request_id, reason=str(error))
        raise HttpError(502, str(error)) from error
    except WorkerRefusedError as error:
        if error.blames_request:
            log.info("request_refused", request_id=request_id, reason=str(error))
            raise InvalidArgument(error.reason) from error
        log.error("request_failed", request_id=request_id, reason=str(error))
        raise HttpError(502, str(error)) from error
