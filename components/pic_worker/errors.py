"""What can go wrong in a worker. Foreign errors are translated into these at the adapters."""

from nebula_protocol.ids import WorkerId


class WorkerError(Exception):
    """Base of the worker's errors."""


class BadWorkError(WorkerError):
    """A request, plan or helper task that this worker cannot take: the sender's fault."""


class PeerGoneError(WorkerError):
    """Another worker does not answer, or broke off."""

    def __init__(self, worker_id: WorkerId, reason: str) -> None:
        super().__init__(f"worker {worker_id} is gone: {reason}")
        self.worker_id = worker_id


class PeerRefusedError(WorkerError):
    """Another worker lives, but nothing can be copied from it: it says so, or the two do not fit together."""

    def __init__(self, worker_id: WorkerId, reason: str) -> None:
        super().__init__(f"worker {worker_id} copies nothing to this one: {reason}")
        self.worker_id = worker_id


class LeaseEndedError(WorkerError):
    """A segment may have been moved since it was offered."""


class CatalogueGoneError(WorkerError):
    """The engine's process does not answer."""


class PromptGoneError(WorkerError):
    """The prefill worker no longer has the prompt's KV, or is no more."""


class StartError(WorkerError):
    """The worker cannot start: a setting or a service it needs is missing."""
