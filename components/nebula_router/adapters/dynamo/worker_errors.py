"""What Dynamo raises when a call to a worker fails, which is told differently by each version.

1.4 raises untyped errors whose text begins with a name, with "Backend" before it where the worker's process raised it.
1.6 gives `InvalidArgument` its type, and calls whatever means that the worker is not there "Unavailable".
"""

from dynamo.llm.exceptions import DynamoException, InvalidArgument

from nebula_protocol.ids import WorkerId
from nebula_router.errors import WorkerGoneError, WorkerRefusedError

# Names that say that the worker is not there or left before the end. Those with "Backend" are raised in the worker's
# process: the other names behind that are what an engine raises in some trouble of its own.
_GONE = frozenset(
    {
        "CannotConnect",
        "Disconnected",
        "ConnectionTimeout",
        "ResponseTimeout",
        "Unavailable",
        "EngineShutdown",
        "StreamIncomplete",
        "WorkerUnavailable",
        "BackendEngineShutdown",
        "BackendStreamIncomplete",
    }
)
_BLAMES_REQUEST = "BackendInvalidArgument"


def translate(worker_id: WorkerId, error: Exception) -> WorkerGoneError | WorkerRefusedError:
    """The same for every version; what blames the request brings the worker's own text alone."""
    text = str(error)
    if isinstance(error, InvalidArgument):
        return WorkerRefusedError(worker_id, text, blames_request=True)
    name, _, rest = text.partition(": ")
    kind = type(error).__name__ if isinstance(error, DynamoException) else name
    if kind == _BLAMES_REQUEST:
        return WorkerRefusedError(worker_id, rest, blames_request=True)
    # A worker's own errors always bring a name: this is one of the router's own socket.
    is_socket_error = type(error) is Exception and "(os error " in text
    if kind in _GONE or is_socket_error:
        return WorkerGoneError(worker_id, text)
    return WorkerRefusedError(worker_id, text)
