"""What can go wrong while a request is served. Foreign errors are translated into these at the adapters."""

from nebula_protocol.ids import WorkerId


class RouterError(Exception):
    """Base of the router's errors."""


class BadRequestError(RouterError):
    """The client's fault; becomes a 4xx with this text."""


class NoWorkerError(RouterError):
    """No live worker of the needed role."""


class WorkerGoneError(RouterError):
    """A worker cannot be reached or broke off; the request may be tried elsewhere."""

    def __init__(self, worker_id: WorkerId, reason: str) -> None:
        super().__init__(f"worker {worker_id} is gone: {reason}")
        self.worker_id = worker_id


class WorkerRefusedError(RouterError):
    """A worker answered with an error of its own."""

    def __init__(self, worker_id: WorkerId, reason: str, *, blames_request: bool = False) -> None:
        super().__init__(f"worker {worker_id} refused: {reason}")
        self.worker_id = worker_id
        self.reason = reason
        self.blames_request = blames_request
        """Whether the request asks for what no worker of the kind can do."""


class StartError(RouterError):
    """The router cannot start: a setting or a service it needs is missing."""
