"""One request's answer on its way to the client: joins prefill's token and decode's, over all attempts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from nebula_protocol.codec import from_plain, to_plain
from nebula_protocol.errors import DecodeError
from nebula_protocol.handover import HANDOVER_KEY, Handover
from nebula_protocol.ids import WorkerId
from nebula_protocol.receipt import RECEIPT_KEY
from nebula_router.errors import WorkerRefusedError
from nebula_router.ports import JsonObject
from nebula_router.request import RoutedRequest

_LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prefill worker's reply: the first token, and what the decode worker needs."""

    chunk: JsonObject
    disaggregated_params: JsonObject
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
        return cls(chunk=chunk, disaggregated_params=params, handover=handover)

    @property
    def token_ids(self) -> list[int]:
        return _token_ids(self.chunk)


class Answer:
    """What was sent so far. The client sees one stream and one usage, however many workers made it."""

    def __init__(self, request: RoutedRequest) -> None:
        self._prompt_tokens = len(request.token_ids)
        self._wants_engine_data = request.wants_engine_data
        self.request = request
        """The request continued behind everything that was sent."""
        self.finished = False

    def first_chunk(self, prefilled: Prefilled, decode_worker_id: WorkerId | None) -> JsonObject:
        """The prefill worker's token, sent before decode takes over."""
        reason = prefilled.chunk.get("finish_reason")
        remaining = self.request.remaining_tokens
        # A prefill worker always stops after one token; only the client's own limit makes that the end.
        stopped = reason is not None and reason != _LENGTH
        at_limit = remaining is not None and remaining <= len(prefilled.token_ids)
        chunk = _without(prefilled.chunk, "disaggregated_params", "completion_usage", "finish_reason")
        if self._wants_engine_data:
            chunk["engine_data"] = {
                RECEIPT_KEY: to_plain(prefilled.handover.receipt),
                "worker_id": {
                    "prefill_worker_id": prefilled.handover.prefill_worker_id,
                    "decode_worker_id": decode_worker_id,
                },
            }
        return self._sent(chunk, reason if stopped else (_LENGTH if at_limit else None))

    def next_chunk(self, decoded: JsonObject) -> JsonObject:
        """A chunk of the decode worker."""
        chunk = _without(decoded, "completion_usage", "finish_reason", "engine_data", "disaggregated_params")
        return self._sent(chunk, decoded.get("finish_reason"))

    def _sent(self, chunk: JsonObject, finish_reason: object) -> JsonObject:
        self.request = self.request.with_generated(_token_ids(chunk))
        if finish_reason is not None:
            self.finished = True
            completion_tokens = len(self.request.generated)
            chunk["finish_reason"] = finish_reason
            chunk["completion_usage"] = {
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": self._prompt_tokens + completion_tokens,
            }
        return chunk


def _without(chunk: Mapping[str, object], *keys: str) -> JsonObject:
    return {key: value for key, value in chunk.items() if key not in keys and value is not None}


def _token_ids(chunk: Mapping[str, object]) -> list[int]:
    token_ids = chunk.get("token_ids")
    return cast("list[int]", token_ids) if isinstance(token_ids, list) else []
