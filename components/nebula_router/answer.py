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
        if not _token_ids(chunk) and chunk.get("finish_reason") in (None, _LENGTH):
            raise WorkerRefusedError(worker_id, "its prefill reply has no token")
        return cls(chunk=chunk, disaggregated_params=params, handover=handover)


class Answer:
    """What was sent so far. The client sees one stream and one usage, however many workers made it."""

    def __init__(self, request: RoutedRequest) -> None:
        self._asked = request
        self._generated: list[int] = []
        self.finished = False

    @property
    def request(self) -> RoutedRequest:
        """The request continued behind everything that was sent. O(tokens)."""
        return self._asked.with_generated(self._generated)

    def first_chunk(self, prefilled: Prefilled, decode_worker_id: WorkerId | None) -> JsonObject:
        """The prefill worker's token, sent before decode takes over."""
        reason = prefilled.chunk.get("finish_reason")
        chunk = _without(prefilled.chunk, "disaggregated_params", "completion_usage", "finish_reason")
        if self._asked.wants_engine_data:
            chunk["engine_data"] = {
                RECEIPT_KEY: to_plain(prefilled.handover.receipt),
                "worker_id": {
                    "prefill_worker_id": prefilled.handover.prefill_worker_id,
                    "decode_worker_id": decode_worker_id,
                },
            }
        # A prefill worker always stops after one token; only the client's own limit makes that the end.
        return self._sent(chunk, None if reason == _LENGTH else reason)

    def next_chunk(self, decoded: JsonObject) -> JsonObject:
        """A chunk of the decode worker."""
        chunk = _without(decoded, "completion_usage", "finish_reason", "engine_data", "disaggregated_params")
        return self._sent(chunk, decoded.get("finish_reason"))

    def _sent(self, chunk: JsonObject, finish_reason: object) -> JsonObject:
        self._generated += _token_ids(chunk)
        prompt_tokens, completion_tokens = len(self._asked.token_ids), len(self._generated)
        limit = self._asked.max_tokens
        if finish_reason is None and limit is not None and completion_tokens >= limit:
            # A worker may say so only in a chunk of its own, and die before it.
            finish_reason = _LENGTH
        if finish_reason is not None:
            self.finished = True
            chunk["finish_reason"] = finish_reason
            chunk["completion_usage"] = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            }
        return chunk


def _without(chunk: Mapping[str, object], *keys: str) -> JsonObject:
    return {key: value for key, value in chunk.items() if key not in keys and value is not None}


def _token_ids(chunk: Mapping[str, object]) -> list[int]:
    token_ids = chunk.get("token_ids")
    return cast("list[int]", token_ids) if isinstance(token_ids, list) else []
