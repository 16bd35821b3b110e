"""The endpoint that Dynamo's frontend sends tokenized requests to."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog
from dynamo.llm.exceptions import HttpError, InvalidArgument
from dynamo.runtime import Context

from nebula_protocol.ids import RequestId
from nebula_router.errors import BadRequestError, NoWorkerError, WorkerRefusedError
from nebula_router.ports import JsonObject
from nebula_router.service import RouterService

log = structlog.get_logger()


class FrontendEndpoint:
    """Translates between Dynamo's handler contract and the service."""

    def __init__(self, service: RouterService) -> None:
        self._service = service

    # Dynamo looks the second parameter up by this name.
    async def generate(self, request: JsonObject, context: Context) -> AsyncGenerator[JsonObject, None]:
        """Ends as soon as the client goes away, although Dynamo itself would look only between two chunks.

        Raises:
            InvalidArgument: becomes a 400 with the text.
            HttpError: 503 without workers, 502 when a worker refused for another reason than the request itself.
        """
        request_id = RequestId(context.id())
        chunks: asyncio.Queue[JsonObject | None] = asyncio.Queue()
        serving = asyncio.create_task(self._serve(request, request_id, chunks))
        serving.add_done_callback(lambda _: chunks.put_nowait(None))
        stopped = asyncio.ensure_future(context.async_killed_or_stopped())
        stopped.add_done_callback(lambda _: serving.cancel())
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
            if serving.cancelled():
                log.info("request_cancelled", request_id=request_id)
            else:
                _raise_translated(request_id, serving)
        finally:
            stopped.cancel()
            serving.cancel()

    async def _serve(
        self, request: JsonObject, request_id: RequestId, chunks: asyncio.Queue[JsonObject | None]
    ) -> None:
        async with aclosing(self._service.handle(request, request_id)) as answer:
            async for chunk in answer:
                chunks.put_nowait(chunk)


def _raise_translated(request_id: RequestId, served: asyncio.Task[None]) -> None:
    try:
        served.result()
    except BadRequestError as error:
        # Dynamo's frontend hides the reason from clients that stream, and from all of /v1/completions.
        log.info("request_refused", request_id=request_id, reason=str(error))
        raise InvalidArgument(str(error)) from error
    except NoWorkerError as error:
        log.error("request_failed", request_id=request_id, reason=str(error))
        raise HttpError(503, str(error)) from error
    except WorkerRefusedError as error:
        if error.blames_request:
            log.info("request_refused", request_id=request_id, reason=str(error))
            # Without Dynamo's name of the error's type.
            raise InvalidArgument(error.reason.partition(": ")[2] or error.reason) from error
        log.error("request_failed", request_id=request_id, reason=str(error))
        raise HttpError(502, str(error)) from error
