"""The endpoint that Dynamo's frontend sends tokenized requests to."""

from collections.abc import AsyncIterator

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
    async def generate(self, request: JsonObject, context: Context) -> AsyncIterator[JsonObject]:
        """
        Raises:
            InvalidArgument: becomes a 400 with the text.
            HttpError: 503 without workers, 502 when a worker refused.
        """
        request_id = RequestId(context.id())
        try:
            async for chunk in self._service.handle(request, request_id):
                if context.is_stopped():
                    log.info("request_cancelled", request_id=request_id)
                    return
                yield chunk
        except BadRequestError as error:
            raise InvalidArgument(str(error)) from error
        except NoWorkerError as error:
            log.error("request_failed", request_id=request_id, reason=str(error))
            raise HttpError(503, str(error)) from error
        except WorkerRefusedError as error:
            log.error("request_failed", request_id=request_id, reason=str(error))
            raise HttpError(502, str(error)) from error
