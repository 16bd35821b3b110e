"""A tokenized request from Dynamo's frontend, read once and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, cast

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.errors import AnnotationError, RequestFieldError, TokenIdsError
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.request_fields import check_fields, check_token_ids
from nebula_protocol.request_options import read_options
from nebula_protocol.tokens import TokenArray, as_token_array
from nebula_router.errors import BadRequestError
from nebula_router.ports import JsonObject

_CHOSEN_WORKER = ("prefill_worker_id", "backend_instance_id")
"""Keys of `routing`, which the frontend fills from those of `nvext`; the first that is set counts."""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What the client asked for."""

    request_id: RequestId
    body: JsonObject
    token_ids: list[int]
    tokens: TokenArray
    max_tokens: int | None
    """As the body says it. Dynamo's frontend asks its prefill stage for one token, whatever the client's limit."""
    options: RequestOptions
    worker_id: WorkerId | None = None
    """The prefill worker that the client chose."""

    @classmethod
    def read(
        cls, body: JsonObject, request_id: RequestId, context_tokens: int, vocabulary_tokens: int | None = None
    ) -> Self:
        """
        Args:
            vocabulary_tokens: The model's token ids are below it; None where it is not known.

        Raises:
            BadRequestError: no prompt, too long a prompt, malformed annotations, or what no worker offers.
        """
        token_ids = body.get("token_ids")
        if not isinstance(token_ids, list) or not token_ids:
            raise BadRequestError("the prompt is empty")
        if len(token_ids) >= context_tokens:
            raise BadRequestError(
                f"the prompt has {len(token_ids)} tokens, the context holds {context_tokens} with the answer"
            )
        try:
            check_fields(body)
            tokens = as_token_array(token_ids)
            check_token_ids(body, tokens, vocabulary_tokens)
            options = read_options(body)
        except (TokenIdsError, AnnotationError, RequestFieldError) as error:
            raise BadRequestError(str(error)) from error
        return cls(
            request_id=request_id,
            body=body,
            token_ids=token_ids,
            tokens=tokens,
            max_tokens=_max_tokens(body, context_tokens - len(token_ids)),
            options=options,
            worker_id=_chosen_worker(body),
        )

    def body_with(self, extra_args: Mapping[str, object]) -> JsonObject:
        """The body for a prefill worker: one token to make, and `extra_args` added to the client's."""
        return {
            **self.body,
            "stop_conditions": {**_mapping(self.body.get("stop_conditions")), "max_tokens": 1},
            "extra_args": {**_mapping(self.body.get("extra_args")), **extra_args},
        }


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _max_tokens(body: JsonObject, room_tokens: int) -> int | None:
    """What the client wants, as far as the context has room: an answer that fills it ends there, as behind Dynamo."""
    value = _mapping(body.get("stop_conditions")).get("max_tokens")
    return min(value, room_tokens) if isinstance(value, int) else None


def _chosen_worker(body: JsonObject) -> WorkerId | None:
    routing = _mapping(body.get("routing"))
    chosen = (routing.get(key) for key in _CHOSEN_WORKER)
    return next((WorkerId(worker_id) for worker_id in chosen if isinstance(worker_id, int)), None)
