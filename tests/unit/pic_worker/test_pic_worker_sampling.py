"""Dynamo's options as vLLM's sampling parameters."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from pic_worker.adapters.vllm.sampling import sampling_params
from pic_worker.errors import BadWorkError


def prefill(**sections: Mapping[str, object]) -> SamplingParams:
    return sampling_params({"token_ids": [1, 2, 3], **sections}, max_tokens=1, for_prefill=True)


def decode(**sections: Mapping[str, object]) -> SamplingParams:
    return sampling_params({"token_ids": [1, 2, 3, 4], **sections}, max_tokens=8, for_prefill=False)


def test_a_request_without_options_is_sampled_as_vllm_samples_by_default() -> None:
    made = sampling_params({"token_ids": [1]}, max_tokens=5, for_prefill=False)
    assert made == SamplingParams(max_tokens=5, detokenize=False, output_kind=RequestOutputKind.DELTA)


def test_options_that_dynamo_writes_as_null_are_left_open() -> None:
    nulls: dict[str, Any] = {
        "sampling_options": dict.fromkeys(("n", "best_of", "temperature", "use_beam_search", "seed", "length_penalty")),
        "stop_conditions": dict.fromkeys(("stop", "min_tokens", "ignore_eos", "stop_token_ids_hidden")),
        "output_options": dict.fromkeys(("logprobs", "prompt_logprobs", "skip_special_tokens", "formatted_prompt")),
        "eos_token_ids": None,
    }
    assert decode(**nulls) == decode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("repetition_penalty", 1.25),
        ("temperature", 0.75),
        ("top_p", 0.5),
        ("top_k", 40),
        ("min_p", 0.125),
    ],
)
def test_both_workers_sample_with_the_client_s_options(name: str, value: float) -> None:
    for make in (prefill, decode):
        assert getattr(make(sampling_options={name: value}), name) == value


def test_temperature_zero_is_greedy_whatever_else_is_asked() -> None:
    made = decode(sampling_options={"temperature": 0, "top_p": 0.5, "top_k": 3})
    assert (made.temperature, made.top_p, made.top_k) == (0.0, 1.0, 0)


def test_the_model_s_defaults_hold_where_the_request_is_silent() -> None:
    made = sampling_params(
        {"sampling_options": {"temperature": 0.5}},
        max_tokens=4,
        for_prefill=False,
        defaults={"temperature": 0.25, "top_k": 20, "max_tokens": 2},
    )
    assert (made.temperature, made.top_k, made.max_tokens) == (0.5, 20, 4)


def test_prefill_draws_with_the_client_s_seed_and_decode_with_another() -> None:
    assert prefill(sampling_options={"seed": 7}).seed == 7
    # Seed 7 behind 4 tokens.
    assert decode(sampling_options={"seed": 7}).seed == 11
    assert decode(sampling_options={"seed": 2**63 - 1}).seed == 3


def test_every_kind_of_stop_token_ends_the_answer() -> None:
    made = decode(
        stop_conditions={"stop_token_ids": [9], "stop_token_ids_visible": [8, 9], "stop_token_ids_hidden": [2]},
        eos_token_ids=[0],  # type: ignore[arg-type]
    )
    assert made.stop_token_ids == [0, 2, 8, 9]


def test_an_ignored_end_of_text_ends_nothing() -> None:
    made = decode(stop_conditions={"ignore_eos": True}, eos_token_ids=[0])  # type: ignore[arg-type]
    assert made.ignore_eos
    assert made.stop_token_ids == []


def test_the_minimum_of_an_answer_also_binds_the_token_of_prefill() -> None:
    assert prefill(stop_conditions={"min_tokens": 5}).min_tokens == 1
    assert decode(stop_conditions={"min_tokens": 5}).min_tokens == 5


def test_the_request_s_own_limit_is_not_this_worker_s() -> None:
    assert prefill(stop_conditions={"max_tokens": 100}).max_tokens == 1


def test_stop_texts_are_left_to_dynamo_which_makes_the_text() -> None:
    made = decode(
        stop_conditions={"stop": ["\n"]},
        sampling_options={"include_stop_str_in_output": True},
        output_options={"skip_special_tokens": False},
    )
    assert made.stop == []
    assert not made.detokenize


def test_log_probabilities_are_asked_of_both_workers() -> None:
    assert prefill(output_options={"logprobs": 3}).logprobs == 3
    assert decode(output_options={"logprobs": 0}).logprobs == 0


def test_a_limit_of_thinking_is_passed_on() -> None:
    assert decode(stop_conditions={"max_thinking_tokens": 64}).thinking_token_budget == 64


@pytest.mark.parametrize(
    ("guided", "field", "expected"),
    [
        ({"json": {"type": "object"}}, "json", {"type": "object"}),
        ({"json": '{"type": "object"}'}, "json", '{"type": "object"}'),
        ({"regex": "[0-9]+"}, "regex", "[0-9]+"),
        ({"choice": ["yes", "no"]}, "choice", ["yes", "no"]),
        ({"grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"structural_tag": {"triggers": ["<a>"]}}, "structural_tag", '{"triggers":["<a>"]}'),
    ],
)
@pytest.mark.parametrize("make", [prefill, decode])
def test_both_workers_sample_by_the_client_s_grammar(
    make: Callable[..., SamplingParams], guided: dict[str, object], field: str, expected: object
) -> None:
    every_key = {**dict.fromkeys(("json", "regex", "choice", "grammar", "backend", "whitespace_pattern")), **guided}
    made = make(sampling_options={"guided_decoding": every_key})
    assert made.structured_outputs is not None
    assert getattr(made.structured_outputs, field) == expected


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"sampling_options": {"n": 2}}, "a request gets one answer"),
        ({"sampling_options": {"best_of": 3}}, "a request gets one answer"),
        ({"sampling_options": {"use_beam_search": True}}, "beam search"),
        ({"sampling_options": {"length_penalty": 0.5}}, "length_penalty"),
        ({"sampling_options": {"temperature": -1}}, "temperature"),
        ({"sampling_options": {"temperature": "hot"}}, r"sampling_options.temperature"),
        ({"sampling_options": {"top_p": 1.5}}, "top_p"),
        ({"sampling_options": {"future_option": 1}}, "future_option"),
        ({"stop_conditions": {"min_tokens": -1}}, "min_tokens"),
        ({"stop_conditions": {"max_thinking_tokens": -5}}, "thinking_token_budget"),
        ({"output_options": {"logprobs": -2}}, "logprobs"),
        ({"output_options": {"prompt_logprobs": 1}}, "prompt_logprobs are not offered"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_one_line(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadWorkError, match=reason) as refused:
        prefill(**sections)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("guided", "reason"),
    [
        ({}, "none are specified"),
        ({"regex": "a", "choice": ["b"]}, "only use one kind"),
        ({"backend": "outlines", "regex": "a"}, "backend"),
        ({"choice": "yes"}, "guided_decoding cannot be read"),
    ],
)
def test_a_grammar_that_is_none_is_refused(guided: dict[str, object], reason: str) -> None:
    request = {"sampling_options": {"guided_decoding": guided}}
    with pytest.raises(BadWorkError, match=reason) as refused:
        sampling_params(request, max_tokens=1, for_prefill=True)
    assert "\n" not in str(refused.value)


def test_an_option_that_an_older_vllm_lacks_is_refused_by_name() -> None:
    with pytest.raises(BadWorkError, match="does not offer option_of_another_version"):
        sampling_params({}, max_tokens=1, for_prefill=True, defaults={"option_of_another_version": 1})
