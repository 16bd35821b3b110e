"""What clients are told behind `graphs:nebula` when they ask for what is not offered: see docs/api.md."""

from collections.abc import Iterator

import pytest
from support.running_graph import Json, RunningGraph

pytestmark = pytest.mark.e2e

CONTEXT = 512
VOCABULARY = 151_936
"""Of the model that the sim graph serves."""
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGraph]:
    options = ("-f", "configs/nebula-2p1d-sim.yaml", f"--Common.context_tokens={CONTEXT}")
    graph = RunningGraph(tmp_path_factory.mktemp("api"), "nebula", *options)
    try:
        graph.wait_until_ready()
        yield graph
    finally:
        graph.stop()


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"n": 2}, "a request gets one answer"),
        ({"prompt_logprobs": 1}, "prompt_logprobs are not offered"),
        ({"allowed_token_ids": [1]}, "the set of tokens that an answer is made of cannot be chosen"),
        ({"stop_token_ids": [VOCABULARY]}, "outside the vocabulary"),
        ({"nvext": {"token_data": [1, VOCABULARY]}}, "outside the vocabulary"),
        ({"nvext": {"agent_hints": {"priority": 3}}}, "requests are served in the order"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "x"},
                            {"type": "image_url", "image_url": {"url": PIXEL}},
                        ],
                    }
                ]
            },
            "the model takes text only",
        ),
    ],
)
def test_what_is_not_offered_is_a_400_with_the_reason(graph: RunningGraph, asked: Json, reason: str) -> None:
    response = graph.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, **asked})
    assert response.status_code == 400, response.text
    # From 1.6 on the frontend itself refuses such a prompt, without a reason.
    own = ("Invalid request",) if "token_data" in asked.get("nvext", {}) else ()
    assert any(text in response.text for text in (reason, *own))


def test_ids_at_the_edge_of_the_vocabulary_are_taken(graph: RunningGraph) -> None:
    answer = graph.complete([1, VOCABULARY - 1], stop_token_ids=[VOCABULARY - 1])
    assert answer["usage"]["completion_tokens"] == 8


def test_an_answer_ends_where_the_context_does(graph: RunningGraph) -> None:
    answer = graph.complete([1] * 500, max_tokens=10**6)
    # 512 tokens of context less 500 of prompt.
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["choices"][0]["finish_reason"] == "length"


def test_several_prompts_are_a_request_each(graph: RunningGraph) -> None:
    response = graph.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2})
    assert response.status_code == 200, response.text
    assert len(response.json()["choices"]) == 2
