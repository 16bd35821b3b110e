"""Dynamo's sampling, stop and output options as vLLM's sampling parameters."""

from collections.abc import Mapping
from typing import cast

import msgspec
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from nebula_protocol.errors import RequestFieldError
from nebula_protocol.request_fields import check_fields
from pic_worker.errors import BadWorkError

_SEED_SPAN = 2**63

# Versions differ in whether the first is one of the others.
_REFUSALS = (VLLMValidationError, ValueError, TypeError)

# Each record lists every field that Dynamo 1.4.2 has, so that an option of a later one is refused and not overlooked.
# Fields without a use here are Dynamo's own business: it cuts at stop texts and makes text of tokens.


class _SamplingOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    n: int = 1
    best_of: int = 1
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    seed: int | None = None
    include_stop_str_in_output: bool = False
    guided_decoding: dict[str, object] | None = None


class _StopConditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_tokens: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    stop_token_ids_visible: list[int] = []
    stop_token_ids_hidden: list[int] = []
    min_tokens: int = 0
    ignore_eos: bool = False
    max_thinking_tokens: int | None = None


class _OutputOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    formatted_prompt: bool = False
    return_tokens_as_token_ids: bool = False


class _GuidedDecoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    json: dict[str, object] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    backend: str | None = None
    whitespace_pattern: str | None = None
    structural_tag: dict[str, object] | str | None = None


class _Asked(msgspec.Struct, frozen=True):
    """What of a preprocessed request bears on sampling."""

    token_ids: list[int] = []
    eos_token_ids: list[int] = []
    sampling_options: _SamplingOptions = _SamplingOptions()
    stop_conditions: _StopConditions = _StopConditions()
    output_options: _OutputOptions = _OutputOptions()


def sampling_params(
    request: Mapping[str, object],
    *,
    max_tokens: int,
    for_prefill: bool,
    defaults: Mapping[str, object] | None = None,
) -> SamplingParams:
    """How one worker samples its part of the answer: the prefill worker the first token, the decode worker the rest.

    `min_tokens` of a decode request counts what is still to come. Presence and frequency
    penalties do not see the tokens that prefill made: they are part of the decode worker's prompt.

    Args:
        request: Dynamo's preprocessed request.
        max_tokens: Tokens that this worker makes at most, over 0; the request's own limit is not read.
        for_prefill: Whether the answer begins here. The decode worker draws from a sequence of its own, for the same
            seed again would draw its first token with the random number of prefill's.
        defaults: Of the model's generation config, for options that the request leaves open.

    Raises:
        BadWorkError: an option is malformed, out of bounds, or cannot be honoured.
    """
    asked = _read(request)
    _refuse_impossible(request)
    options, stops = asked.sampling_options, asked.stop_conditions
    given: dict[str, object] = {
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "repetition_penalty": options.repetition_penalty,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "seed": _seed(options.seed, None if for_prefill else len(asked.token_ids)),
        "thinking_token_budget": stops.max_thinking_tokens,
        "logprobs": asked.output_options.logprobs,
        "structured_outputs": _structured_outputs(options.guided_decoding),
    }
    values = {**(defaults or {}), **{name: value for name, value in given.items() if value is not None}}
    values |= {
        "max_tokens": max_tokens,
        # vLLM takes no minimum over the maximum, and prefill makes one token of it.
        "min_tokens": min(stops.min_tokens, max_tokens),
        "ignore_eos": stops.ignore_eos,
        "stop_token_ids": _stop_token_ids(asked),
        "detokenize": False,
        "output_kind": RequestOutputKind.FINAL_ONLY if for_prefill else RequestOutputKind.DELTA,
    }
    return _make(values)


def _read(request: Mapping[str, object]) -> _Asked:
    """Dynamo writes a missing option as null, so those go first."""
    known = {name: _without_nulls(request[name]) for name in _Asked.__struct_fields__ if request.get(name) is not None}
    try:
        return msgspec.convert(known, type=_Asked)
    except msgspec.ValidationError as error:
        raise BadWorkError(f"the request's options cannot be read: {error}") from error


def _without_nulls(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: inner for name, inner in cast("Mapping[str, object]", value).items() if inner is not None}


def _refuse_impossible(request: Mapping[str, object]) -> None:
    try:
        check_fields(request)
    except RequestFieldError as error:
        raise BadWorkError(str(error)) from error


def _structured_outputs(guided: Mapping[str, object] | None) -> StructuredOutputsParams | None:
    if guided is None:
        return None
    try:
        wanted = msgspec.convert(_without_nulls(guided), type=_GuidedDecoding)
    except msgspec.ValidationError as error:
        raise BadWorkError(f"guided_decoding cannot be read: {error}") from error
    if wanted.backend is not None:
        raise BadWorkError("guided_decoding.backend cannot be chosen by a request")
    tag = wanted.structural_tag
    try:
        return StructuredOutputsParams(
            json=wanted.json,
            regex=wanted.regex,
            choice=wanted.choice,
            grammar=wanted.grammar,
            whitespace_pattern=wanted.whitespace_pattern,
            structural_tag=tag if tag is None or isinstance(tag, str) else msgspec.json.encode(tag).decode(),
        )
    except _REFUSALS as error:
        raise BadWorkError(f"guided_decoding: {_first_line(error)}") from error


def _seed(seed: int | None, num_tokens_before: int | None) -> int | None:
    """The seed itself for a whole answer's beginning; another one for each place where an answer goes on."""
    if seed is None or num_tokens_before is None:
        return seed
    return (seed + num_tokens_before) % _SEED_SPAN


def _stop_token_ids(asked: _Asked) -> list[int]:
    """Ascending. Dynamo hides those that the client shall not see, so all are the same to the engine."""
    stops = asked.stop_conditions
    ids = {*stops.stop_token_ids, *stops.stop_token_ids_visible, *stops.stop_token_ids_hidden}
    if not stops.ignore_eos:
        ids.update(asked.eos_token_ids)
    return sorted(ids)


def _make(values: Mapping[str, object]) -> SamplingParams:
    unknown = sorted(values.keys() - set(SamplingParams.__struct_fields__))
    if unknown:
        raise BadWorkError(f"this vLLM does not offer {', '.join(unknown)}")
    try:
        return SamplingParams(**values)  # type: ignore[arg-type]
    except _REFUSALS as error:
        raise BadWorkError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
