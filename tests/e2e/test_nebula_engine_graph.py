"""`dynamo serve graphs:nebula` with real vLLM workers and a tiny model, as clients see it."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import httpx
import pytest
from support import offline_answers
from support.running_graph import Json, RunningGraph, eventually, receipt_of
from support.tiny_graph import BLOCK, REQUEST_LIMIT_S, tiny_graph, tiny_model, tokens_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

NUM_ANSWER_TOKENS = 12
SYSTEM, PASSAGE = 40, 200
"""Tokens; the passages begin and end inside of blocks."""
QUESTIONS = {"what": 23, "who": 24, "where": 25, "why": 16, "when": 26, "how": 27}
"""Their tokens. Behind one passage, "why" ends the prompt with its eighth block: 40 + 200 + 16 = 8 * 32."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def one_node(model_dir: Path) -> dict[str, list[int]]:
    """Greedy answers of vLLM alone to the prompts below, by name."""
    asked = [(prompt_of(*passages), NUM_ANSWER_TOKENS) for passages in PROMPTS.values()]
    done = subprocess.run(
        [sys.executable, offline_answers.__file__, str(model_dir)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=REQUEST_LIMIT_S * 2,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(PROMPTS, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.fixture(scope="module")
def graph(
    tmp_path_factory: pytest.TempPathFactory, model_dir: Path, one_node: dict[str, list[int]]
) -> Iterator[RunningGraph]:
    """Two prefill workers and one decode worker, started when the engine of `one_node` has gone."""
    with tiny_graph(tmp_path_factory.mktemp("engine-graph"), model_dir, device_capacity_tokens=16_384) as graph:
        yield graph


def parts_of(passages: Sequence[str], question: str) -> list[list[int]]:
    return [
        tokens_of("system", SYSTEM),
        *(tokens_of(passage, PASSAGE) for passage in passages),
        tokens_of(question, QUESTIONS[question]),
    ]


def prompt_of(passages: Sequence[str], question: str) -> list[int]:
    return [token for part in parts_of(passages, question) for token in part]


PROMPTS: dict[str, tuple[Sequence[str], str]] = {
    "first": (("a1", "a2"), "what"),
    "exact": (("x2", "x1"), "who"),
    "full": (("f2", "f1"), "where"),
    "aligned": (("e1",), "why"),
    "lost": (("k1", "k2"), "when"),
}


def ask(graph: RunningGraph, passages: Sequence[str], question: str, *annotations: str, **options: object) -> Json:
    """The answer to a prompt with marked passages."""
    ends = list(accumulate(map(len, parts_of(passages, question)), initial=0))
    spans = list(map(list, pairwise(ends)))[1:-1]
    marks = f"nebula.spans={json.dumps(spans, separators=(',', ':'))}"
    return graph.complete(
        prompt_of(passages, question),
        annotations=[marks, *annotations],
        **{"max_tokens": NUM_ANSWER_TOKENS, **GREEDY, **options},
    )


GREEDY: Json = {"temperature": 0, "ignore_eos": True, "logprobs": 1, "return_tokens_as_token_ids": True}


def answer_tokens(answer: Json) -> list[int]:
    return [int(token.removeprefix("token_id:")) for token in answer["choices"][0]["logprobs"]["tokens"]]


MAX_TENANTS = 30


def ask_in_another_order(graph: RunningGraph, passages: Sequence[str], question: str, *annotations: str) -> Json:
    """The answer to a prompt behind one with the same passages in reverse order, from the worker that has them.

    The router may rightly choose the other worker: a first step takes seconds, and for a while its worker counts as
    slow. Then once more as another tenant, who has nothing.
    """
    for number in range(MAX_TENANTS):
        tenant = f"nebula.salt={question}-{number}"
        ask(graph, passages[::-1], "what", tenant)
        answer = ask(graph, passages, question, tenant, *annotations)
        if {segment["done"] for segment in passages_in(receipt_of(answer))} == {"local"}:
            return answer
    raise AssertionError(f"none of {MAX_TENANTS} tenants came back to the worker that has its passages")


def passages_in(receipt: Json) -> list[Json]:
    """Without the system prompt, which is a segment too."""
    return [segment for segment in receipt["segments"] if segment["start"] >= SYSTEM]


def num_running(graph: RunningGraph) -> float:
    """Requests in the decode worker's engine."""
    (decode,) = graph.processes("DecodeWorker")
    lines = graph.metrics_of(decode).splitlines()
    counts = [float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{")]
    assert len(counts) == 1
    return counts[0]


class Stream:
    """An answer as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()
        self.tokens: list[int] = []

    def next_event(self) -> Json | None:
        for line in self._lines:
            if line.startswith("data: ") and line != "data: [DONE]":
                event: Json = json.loads(line.removeprefix("data: "))
                if event.get("choices"):
                    self.tokens += answer_tokens(event)
                return event
        return None

    def read_to_end(self) -> None:
        while self.next_event() is not None:
            pass


def stream(graph: RunningGraph, passages: Sequence[str], question: str, num_tokens: int) -> "httpx.Response":
    body = {
        "model": graph.info.model_name,
        "prompt": prompt_of(passages, question),
        "max_tokens": num_tokens,
        "stream": True,
        "nvext": {"extra_fields": ["engine_data"]},
        **GREEDY,
    }
    client = httpx.Client(timeout=REQUEST_LIMIT_S)
    request = client.build_request("POST", f"{graph.info.url}/v1/completions", json=body)
    return client.send(request, stream=True)


def test_the_first_sight_of_passages_is_exact_and_keeps_them(
    graph: RunningGraph, one_node: dict[str, list[int]]
) -> None:
    answer = ask(graph, *PROMPTS["first"])
    receipt = receipt_of(answer)
    assert answer_tokens(answer) == one_node["first"]
    assert (receipt["segment_hit_tokens"], receipt["recomputed_tokens"]) == (0, 0)
    assert [segment["stored"] for segment in passages_in(receipt)] == [True, True]
    assert answer["usage"]["completion_tokens"] == NUM_ANSWER_TOKENS


def test_the_same_passages_in_another_order_are_segment_hits(graph: RunningGraph) -> None:
    answer = ask_in_another_order(graph, ("b2", "b1"), "who")
    receipt = receipt_of(answer)
    # The system prompt is a prefix hit up to its last full block; the passages begin behind it.
    assert receipt["segment_hit_tokens"] == 2 * PASSAGE
    assert receipt["prefix_hit_tokens"] == BLOCK
    assert {(segment["done"], segment["origin"]) for segment in passages_in(receipt)} == {("local", "in_context")}
    # LegoLink's 16 leading tokens of each.
    assert receipt["recomputed_tokens"] == 2 * 16
    assert receipt["invalid_hit_tokens"] == 0
    assert len(answer_tokens(answer)) == NUM_ANSWER_TOKENS


def test_an_exact_request_gets_the_answer_of_one_node_whatever_ran_before(
    graph: RunningGraph, one_node: dict[str, list[int]]
) -> None:
    ask(graph, ("x1", "x2"), "what")
    ask(graph, *PROMPTS["exact"])
    answer = ask(graph, *PROMPTS["exact"], "nebula.pic=off")
    assert answer_tokens(answer) == one_node["exact"]
    assert receipt_of(answer)["segment_hit_tokens"] == 0


def test_computing_all_reused_tokens_again_gives_the_answer_of_one_node(
    graph: RunningGraph, one_node: dict[str, list[int]]
) -> None:
    answer = ask_in_another_order(graph, *PROMPTS["full"], "nebula.fusion=full")
    receipt = receipt_of(answer)
    assert receipt["segment_hit_tokens"] == receipt["recomputed_tokens"] == 2 * PASSAGE
    assert answer_tokens(answer) == one_node["full"]


def test_a_prompt_that_fills_its_last_block_is_taken_over(graph: RunningGraph, one_node: dict[str, list[int]]) -> None:
    assert len(prompt_of(*PROMPTS["aligned"])) % BLOCK == 0
    assert answer_tokens(ask(graph, *PROMPTS["aligned"])) == one_node["aligned"]


def test_a_chat_message_is_answered(graph: RunningGraph) -> None:
    answer = graph.chat("What does a router do?", max_tokens=5, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5


def test_an_option_that_cannot_be_honoured_is_refused(graph: RunningGraph) -> None:
    messages = [{"role": "user", "content": "hi"}]
    response = graph.post("/v1/chat/completions", {"messages": messages, "n": 2, "temperature": 0.5})
    assert response.status_code == 400
    assert "a request gets one answer" in response.json()["message"]
    assert graph.chat("And now?", max_tokens=2)["choices"]


def test_a_token_that_the_model_does_not_know_is_refused_and_harms_nobody(graph: RunningGraph) -> None:
    response = graph.post("/v1/completions", {"prompt": [20, 10**6, 30], "max_tokens": 2})
    assert response.status_code >= 400
    assert graph.chat("And now?", max_tokens=2)["choices"]


def test_a_client_that_leaves_frees_the_engine(graph: RunningGraph) -> None:
    response = stream(graph, ("g1",), "how", num_tokens=3000)
    answer = Stream(response)
    while len(answer.tokens) < 3:
        assert answer.next_event() is not None
    response.close()
    # Left alone, it would go on for a minute.
    eventually(lambda: num_running(graph) == 0, "the engine is free", 10.0)
