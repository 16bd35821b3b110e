"""Every field of a tokenized request of Dynamo's frontend, and what becomes of it: see docs/api.md.

Router and workers check requests with this one function, so that no engine overlooks what another refuses.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

from nebula_protocol.errors import RequestFieldError
from nebula_protocol.tokens import TokenArray


class Treatment(StrEnum):
    HONOURED = "honoured"
    REFUSED = "refused"
    NO_MEANING = "no meaning"


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    harmless: tuple[object, ...] = ()
    """Values that ask for nothing, and pass."""


_ONE_ANSWER: Final = Refusal("a request gets one answer", harmless=(1,))
_TEXT_ONLY: Final = Refusal("the model takes text only: no images, audio, video or embeddings", harmless=({}, []))
_NO_PRIORITY: Final = Refusal("requests are served in the order in which they come", harmless=(0,))
_ONE_RANK: Final = Refusal("every worker has rank 0 only", harmless=(0,))
_NO_LORA: Final = Refusal("adapters are not served", harmless=("",))
_ALL_TOKENS: Final = Refusal("the set of tokens that an answer is made of cannot be chosen", harmless=([],))

REFUSALS: Final[Mapping[str, Refusal]] = {
    "prompt_embeds": _TEXT_ONLY,
    "multi_modal_data": _TEXT_ONLY,
    "multi_modal_uuids": _TEXT_ONLY,
    "mm_routing_info": _TEXT_ONLY,
    "mm_processor_kwargs": _TEXT_ONLY,
    "encoder_result": _TEXT_ONLY,
    "sampling_options.n": _ONE_ANSWER,
    "sampling_options.best_of": _ONE_ANSWER,
    "sampling_options.use_beam_search": Refusal("beam search is not offered", harmless=(False,)),
    "sampling_options.length_penalty": Refusal("it belongs to beam search, which is not offered", harmless=(1,)),
    "output_options.prompt_logprobs": Refusal(
        "echo and prompt_logprobs are not offered: tokens whose KV is reused are not computed"
    ),
    "extra_args.sampling_options.allowed_token_ids": _ALL_TOKENS,
    "extra_args.sampling_options.bad_words_token_ids": _ALL_TOKENS,
    "extra_args.sampling_options.logprob_token_ids": Refusal(
        "log probabilities are of the likeliest tokens only", harmless=([],)
    ),
    "extra_args.nvext.metadata_upload": Refusal("metadata come back with the answer only"),
    "routing.dp_rank": _ONE_RANK,
    "routing.prefill_dp_rank": _ONE_RANK,
    "routing.lora_name": _NO_LORA,
    "routing.priority": _NO_PRIORITY,
    "routing.priority_jump": _NO_PRIORITY,
    "routing.strict_priority": _NO_PRIORITY,
    "routing.routing_constraints.required_taints": Refusal("workers have no taints", harmless=([],)),
}

HONOURED: Final = frozenset(
    {
        "token_ids",
        "annotations",
        "eos_token_ids",
        "stop_conditions.max_tokens",
        "stop_conditions.min_tokens",
        "stop_conditions.stop",
        "stop_conditions.stop_token_ids",
        "stop_conditions.stop_token_ids_visible",
        "stop_conditions.stop_token_ids_hidden",
        "stop_conditions.ignore_eos",
        "stop_conditions.max_thinking_tokens",
        "sampling_options.presence_penalty",
        "sampling_options.frequency_penalty",
        "sampling_options.repetition_penalty",
        "sampling_options.temperature",
        "sampling_options.top_p",
        "sampling_options.top_k",
        "sampling_options.min_p",
        "sampling_options.seed",
        "sampling_options.include_stop_str_in_output",
        "sampling_options.guided_decoding",
        "output_options.logprobs",
        "output_options.skip_special_tokens",
        "output_options.return_tokens_as_token_ids",
        "routing.cache_salt",
        "routing.backend_instance_id",
        "routing.prefill_worker_id",
        "extra_args.nvext.cache_salt",
        "extra_args.nvext.extra_fields",
        "prefill_result",
    }
)

NO_MEANING: Final = frozenset(
    {
        "model",
        "mdc_sum",
        "output_options.formatted_prompt",
        "routing.decode_worker_id",
        "routing.expected_output_tokens",
        "routing.allowed_worker_ids",
        "routing.routing_constraints.preferred_taints",
        "router",
        "router_config_override",
        "agent_context",
        "image_cache_scope",
        "request_timestamp_ms",
        "migration_link",
        "bootstrap_info",
        "require_reasoning",
        "extra_args.formatted_prompt",
        "extra_args.messages",
        "extra_args.nvext.token_in",
        "extra_args.sampling_options.detokenize",
    }
)

TREATMENTS: Final[Mapping[str, Treatment]] = {
    **dict.fromkeys(HONOURED, Treatment.HONOURED),
    **dict.fromkeys(REFUSALS, Treatment.REFUSED),
    **dict.fromkeys(NO_MEANING, Treatment.NO_MEANING),
}

_OPTIONS: Final = frozenset({"stop_conditions", "sampling_options", "output_options", "extra_args.sampling_options"})
"""Objects in which an unknown field is one that the client asked for: it is refused, not overlooked."""
_OBJECTS: Final = _OPTIONS | {"routing", "routing.routing_constraints", "extra_args", "extra_args.nvext"}
_STOP_IDS: Final = ("stop_token_ids", "stop_token_ids_visible")


def fields_of(request: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Path and value of each field that is set: an object that only groups others is none itself.

    Raises:
        RequestFieldError: such an object is something else.
    """
    return _fields(request, "")


def _fields(group: Mapping[str, object], name: str) -> Iterator[tuple[str, object]]:
    for key, value in group.items():
        if value is None:
            continue
        path = f"{name}.{key}" if name else key
        if path not in _OBJECTS:
            yield path, value
        elif isinstance(value, Mapping):
            yield from _fields(cast("Mapping[str, object]", value), path)
        else:
            raise RequestFieldError(f"{path} must be an object")


def check_fields(request: Mapping[str, object]) -> None:
    """
    Raises:
        RequestFieldError: the request asks for something that no worker does.
    """
    for path, value in fields_of(request):
        refusal = REFUSALS.get(path)
        if refusal is not None and value not in refusal.harmless:
            raise RequestFieldError(f"{path} cannot be {_shown(value)}: {refusal.reason}")
        if path not in TREATMENTS and path.rpartition(".")[0] in _OPTIONS:
            raise RequestFieldError(f"{path} is not known here")


def check_token_ids(request: Mapping[str, object], tokens: TokenArray, vocabulary_tokens: int | None) -> None:
    """
    Args:
        tokens: Of the prompt.
        vocabulary_tokens: Ids of the model are below it; None where it is not known.

    Raises:
        RequestFieldError: an id of the prompt, or one that shall end the answer, is outside the vocabulary.
    """
    if vocabulary_tokens is None:
        return
    if tokens.size and int(tokens.max()) >= vocabulary_tokens:
        raise RequestFieldError(f"token id {tokens.max()} of the prompt is outside the vocabulary: {vocabulary_tokens}")
    stops = request.get("stop_conditions")
    if not isinstance(stops, Mapping):
        return
    for key in _STOP_IDS:
        ids = cast("Mapping[str, object]", stops).get(key)
        for token_id in ids if isinstance(ids, list) else ():
            if not isinstance(token_id, int) or not 0 <= token_id < vocabulary_tokens:
                raise RequestFieldError(
                    f"{key} has {_shown(token_id)}, which is outside the vocabulary: {vocabulary_tokens}"
                )


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, bool | int | float) else f"a {type(value).__name__}"
