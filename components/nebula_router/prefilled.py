"""A prefill worker's reply, read for what the router learns from it."""

from dataclasses import dataclass

from nebula_protocol.codec import from_plain
from nebula_protocol.errors import DecodeError
from nebula_protocol.handover import HANDOVER_KEY, Handover
from nebula_protocol.ids import WorkerId
from nebula_router.errors import WorkerRefusedError
from nebula_router.ports import JsonObject


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The reply goes to the frontend as it came; the decode worker reads the handover in it."""

    chunk: JsonObject
    handover: Handover

    @classmethod
    def read(cls, worker_id: WorkerId, chunk: JsonObject) -> "Prefilled":
        """
        Raises:
            WorkerRefusedError: the reply lacks the handover or cannot be understood.
        """
        params = chunk.get("disaggregated_params")
        if not isinstance(params, dict):
            raise WorkerRefusedError(worker_id, "its prefill reply has no disaggregated_params")
        try:
            handover = from_plain(params.get(HANDOVER_KEY), Handover)
        except DecodeError as error:
            raise WorkerRefusedError(worker_id, f"its handover cannot be read: {error}") from error
        return cls(chunk, handover)
