"""What can go wrong while a request is served. Foreign errors are translated into these at the adapters."""

from collections.abc import Sequence

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


class WorkersLostError(RouterError):
    """A request lost as many workers as it may; it is not tried again."""

    def __init__(self, worker_ids: Sequence[WorkerId], reason: str) -> None:
        names = ", ".join(str(worker_id) for worker_id in worker_ids)
        super().__init__(f"the request lost prefill workers {names} and is not tried again: {reason}")
        self.worker_ids = tuple(worker_ids)


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
