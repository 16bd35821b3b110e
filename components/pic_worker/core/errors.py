"""Why the engine refuses a call. Each is the caller's fault; none is met in ordinary operation."""

from nebula_protocol.ids import RequestId


class EngineError(Exception):
    """Base of all errors of the engine core."""


class DuplicateRequestError(EngineError):
    """A live request has this id already."""

    def __init__(self, request_id: RequestId) -> None:
        super().__init__(f"request {request_id!r} is already here")
        self.request_id = request_id


class PromptRefusedError(EngineError):
    """The prompt can never run here: it is empty, or larger than the device tier."""

    def __init__(self, request_id: RequestId, num_tokens: int, capacity_tokens: int) -> None:
        super().__init__(f"a prompt of {num_tokens} tokens does not fit a device tier of {capacity_tokens} tokens")
        self.request_id = request_id
        self.num_tokens = num_tokens
        self.capacity_tokens = capacity_tokens


class NoStepError(EngineError):
    """A step was reported finished while none is in flight."""

    def __init__(self) -> None:
        super().__init__("no step is in flight")
