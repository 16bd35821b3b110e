"""What a real frontend of Dynamo makes of requests: no field that docs/api.md does not know."""

from collections.abc import Iterator

import pytest
from support.tenants import NAMINGS, TenantNaming
from support.tokenizing_frontend import Json, TokenizingFrontend

from nebula_protocol.request_fields import TREATMENTS, fields_of
from nebula_protocol.request_options import read_options
from nebula_serve.sim_model import ensure_sim_model

pytestmark = pytest.mark.integration

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
HEADERS = (
    "x-dynamo-worker-instance-id",
    "x-prefill-instance-id",
    "x-dynamo-request-priority",
    "x-dp-rank",
    "x-prefill-dp-rank",
    "x-session-id",
    "x-tenant-id",
)
OPTIONS: Json = {
    "n": 2,
    "seed": 5,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "stop": ["a", "b"],
    "stop_token_ids": [5],
    "min_tokens": 1,
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "prompt_logprobs": 1,
    "logit_bias": {"5": 1},
    "user": "somebody",
    "allowed_token_ids": [1],
    "bad_words_token_ids": [[1]],
    "logprob_token_ids": [1],
    "detokenize": False,
    "guided_regex": "a+",
    "cache_salt": "acme",
}
NVEXT: Json = {
    "annotations": ["nebula.pic=off"],
    "extra_fields": ["engine_data", "timing"],
    "agent_hints": {"priority": 3, "osl": 55, "strict_priority": 2},
    "max_thinking_tokens": 5,
    "router": {"ttft_target": 1.0},
    "request_timestamp_ms": 3,
    "routing_constraints": {"required_taints": ["a"], "preferred_taints": {"b": 0.5}},
    "metadata_upload": {"url": "http://localhost"},
    "backend_instance_id": 1,
    "prefill_worker_id": 2,
    "decode_worker_id": 3,
    "dp_rank": 1,
    "prefill_dp_rank": 2,
    "greed_sampling": True,
    "use_raw_prompt": True,
}
PINS = ("backend_instance_id", "decode_worker_id", "dp_rank")
PIN_HEADERS = ("x-dynamo-worker-instance-id", "x-dp-rank")
"""Workers and ranks, here ones that do not exist."""
PICTURE: Json = {"type": "image_url", "image_url": {"url": PIXEL}}


@pytest.fixture(scope="module")
def frontend(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenizingFrontend]:
    frontend = TokenizingFrontend(
        ensure_sim_model(tmp_path_factory.mktemp("models")), nats_url, tmp_path_factory.mktemp("discovery")
    )
    try:
        frontend.wait_until_ready()
        yield frontend
    finally:
        frontend.close()


def chat(content: object = "hi", **options: object) -> Json:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 3, **options}


def test_no_field_is_unknown(frontend: TokenizingFrontend) -> None:
    asked: list[tuple[str, Json]] = [
        (CHAT, chat()),
        (CHAT, chat(logprobs=True, top_logprobs=2, **OPTIONS)),
        (CHAT, chat(mm_processor_kwargs={"a": 1})),
        (CHAT, chat(tools=TOOLS, reasoning_effort="low", chat_template_args={"a": 1})),
        (CHAT, chat([{"type": "text", "text": "x"}, PICTURE])),
        (TEXT, {"prompt": "hi", "max_tokens": 3, "echo": True}),
        (TEXT, {"prompt": [1, 2, 3], "max_tokens": 3, "best_of": 2, "logprobs": 2, "suffix": "x"}),
        *((CHAT, chat(nvext={name: value})) for name, value in NVEXT.items() if name not in PINS),
    ]
    sent = [frontend.tokenized(path, body) for path, body in asked]
    sent += [frontend.tokenized(CHAT, chat(), {name: "3"}) for name in HEADERS if name not in PIN_HEADERS]
    pinned = [frontend.tokenized_if_passed_on(CHAT, chat(nvext={name: NVEXT[name]})) for name in PINS]
    pinned += [frontend.tokenized_if_passed_on(CHAT, chat(), {name: "3"}) for name in PIN_HEADERS]
    sent += [request for request in pinned if request is not None]
    seen = {path for request in sent for path, _ in fields_of(request)}
    assert seen - TREATMENTS.keys() == set()
    # The test would see nothing if it asked for nothing.
    assert len(seen) > 40


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("naming", NAMINGS, ids=lambda naming: naming.name)
def test_a_tenant_arrives_however_it_is_named(frontend: TokenizingFrontend, naming: TenantNaming, path: str) -> None:
    in_body, in_nvext, headers = naming.parts("acme")
    prompt = chat() if path == CHAT else {"prompt": "hi", "max_tokens": 3}
    request = frontend.tokenized(path, {**prompt, **in_body, "nvext": in_nvext}, headers)
    assert read_options(request).cache_salt == "acme"


def test_long_texts_of_any_language_arrive_as_tenants(frontend: TokenizingFrontend) -> None:
    salts = [read_options(frontend.tokenized(CHAT, chat(cache_salt=text))).cache_salt for text in ("ä☃" * 500, "ä☃")]
    assert all(salts)
    assert len(set(salts)) == 2
