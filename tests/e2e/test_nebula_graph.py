"""`dynamo serve graphs:nebula`: Dynamo's frontend, the router and three workers, as clients and operators see them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path

import psutil
import pytest
from support.running_graph import ROOT, Json, RunningGraph, eventually, receipt_of

from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.serving.process_metrics import WORKERS, ProcessMetrics
from nebula_protocol.plan import Source
from nebula_serve.run_info import ProcessInfo

pytestmark = pytest.mark.e2e

ANSWER = "This is a simulated answer"
SYSTEM, PASSAGE = 64, 512
"""Tokens."""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGraph]:
    # All room for blocks at first, so that any segment that returns is a reason to move the split.
    split = ("--Router.prefix_ratio=1", "--Router.window_requests=8")
    graph = RunningGraph(tmp_path_factory.mktemp("nebula"), "nebula", "-f", "configs/nebula-2p1d-sim.yaml", *split)
    try:
        graph.wait_until_ready()
        yield graph
    finally:
        graph.stop()


def tokens_of(*parts: tuple[str, int]) -> list[int]:
    vocabulary = PseudoVocabulary()
    return [token for name, num_tokens in parts for token in vocabulary.tokens(name, num_tokens).tolist()]


def ask_about(graph: RunningGraph, passages: tuple[str, ...], question: str, *annotations: str) -> Json:
    """The receipt of a prompt with marked passages between a system prompt and a question that is always new."""
    parts = [("system", SYSTEM), *((passage, PASSAGE) for passage in passages), (question, 20)]
    spans = list(map(list, pairwise(accumulate((num_tokens for _, num_tokens in parts), initial=0))))
    marks = f"nebula.spans={json.dumps(spans, separators=(',', ':'))}"
    return receipt_of(graph.complete(tokens_of(*parts), annotations=[marks, *annotations]))


def found_tokens(receipt: Json) -> int:
    """Segment hits on what was there before; what helpers compute for the very request is none."""
    made_for_it = (s["end"] - s["start"] for s in receipt["segments"] if s["done"] == Source.COMPUTE_AT)
    num_found: int = receipt["segment_hit_tokens"] - sum(made_for_it)
    return num_found


def ask_at_once(graph: RunningGraph, name: str, on_first_half_sent: Callable[[], None] = lambda: None) -> list[Json]:
    """The receipts of 24 different prompts, of which eight are in flight at any time."""
    prompts = [tokens_of((f"{name} {number}", 3_000)) for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(graph.complete, prompt) for prompt in prompts[:12]]
        on_first_half_sent()
        answers += [pool.submit(graph.complete, prompt) for prompt in prompts[12:]]
        return [receipt_of(answer.result()) for answer in answers]


def worker_id_of(graph: RunningGraph, process: ProcessInfo) -> int:
    worker_id = ProcessMetrics(graph.metrics_of(process)).worker_id()
    assert worker_id is not None
    return worker_id


def prefill_ids(graph: RunningGraph) -> set[int]:
    return {worker_id_of(graph, process) for process in graph.processes("PrefillWorker")}


def test_a_chat_message_is_answered_at_its_full_length(graph: RunningGraph) -> None:
    answer = graph.chat("What does a router do?", max_tokens=12)
    (choice,) = answer["choices"]
    assert choice["message"]["content"].startswith(ANSWER)
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens"] > 5


def test_a_streamed_answer_has_the_text_of_one_that_is_not(graph: RunningGraph) -> None:
    whole = graph.chat("What does a router do?")["choices"][0]["message"]["content"]
    messages = [{"role": "user", "content": "What does a router do?"}]
    response = graph.post("/v1/chat/completions", {"messages": messages, "max_tokens": 8, "stream": True})
    *events, end = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    assert end == "[DONE]"
    assert len(pieces) == 8
    assert "".join(pieces) == whole


def test_a_prompt_of_token_ids_is_answered(graph: RunningGraph) -> None:
    answer = graph.complete(tokens_of(("ids", 100)), max_tokens=1)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (100, 1, 101)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_passages_in_another_order_are_segment_hits(graph: RunningGraph) -> None:
    first = ask_about(graph, ("a1", "a2"), "q1")
    second = ask_about(graph, ("a2", "a1"), "q2")
    assert found_tokens(first) == 0
    # The system prompt is a prefix hit where the same worker was chosen; both passages are found in any case.
    assert found_tokens(second) == 2 * PASSAGE
    counted = second["prefix_hit_tokens"] + second["segment_hit_tokens"] + second["computed_tokens"]
    assert counted == second["prompt_tokens"] == SYSTEM + 2 * PASSAGE + 20


def test_without_pic_nothing_but_a_prefix_is_reused(graph: RunningGraph) -> None:
    ask_about(graph, ("b1", "b2"), "q1")
    exact = ask_about(graph, ("b2", "b1"), "q2", "nebula.pic=off")
    assert exact["segment_hit_tokens"] == 0
    assert exact["prefix_hit_tokens"] <= SYSTEM


def test_a_tenant_finds_nothing_of_another(graph: RunningGraph) -> None:
    ask_about(graph, ("c1", "c2"), "q1", "nebula.salt=one")
    other = ask_about(graph, ("c2", "c1"), "q2", "nebula.salt=two")
    own = ask_about(graph, ("c2", "c1"), "q3", "nebula.salt=one")
    assert (other["prefix_hit_tokens"], found_tokens(other)) == (0, 0)
    assert found_tokens(own) == 2 * PASSAGE


def test_engine_data_names_the_workers_that_the_router_chose(graph: RunningGraph) -> None:
    answer = graph.complete(tokens_of(("metadata", 200)))
    chosen = answer["nvext"]["engine_data"]["worker_id"]
    (decode,) = graph.processes("DecodeWorker")
    assert chosen["prefill_worker_id"] == receipt_of(answer)["worker"]["worker_id"]
    assert chosen["prefill_worker_id"] in prefill_ids(graph)
    assert chosen["decode_worker_id"] == worker_id_of(graph, decode)
    assert answer["nvext"]["timing"]["total_time_ms"] > 0


def test_dynamo_itself_names_the_router_as_the_prefill_worker(graph: RunningGraph) -> None:
    # A limit of Dynamo that docs/results.md tells of; when this fails, it is gone.
    (router,) = graph.processes("Router")
    (decode,) = graph.processes("DecodeWorker")
    named = graph.complete(tokens_of(("metadata", 200)))["nvext"]["worker_id"]
    assert named["prefill_worker_id"] == worker_id_of(graph, router)
    assert named["decode_worker_id"] == worker_id_of(graph, decode)


def test_a_span_outside_the_prompt_is_refused_with_the_reason(graph: RunningGraph) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "nvext": {"annotations": ["nebula.spans=[[0,5000]]"]}}
    response = graph.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert "span [0, 5000) is outside the prompt" in response.json()["message"]
    assert graph.chat("And now?")["choices"]


def start_reader(graph: RunningGraph, *command: str) -> "subprocess.Popen[str]":
    """`nebula ...` on this graph, which prints JSON."""
    arguments = [sys.executable, "-m", "nebula_cli", *command, "--json", "--working-dir", str(graph.folder)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_events_of_every_topic_are_printed_decoded(graph: RunningGraph) -> None:
    events = start_reader(graph, "events", "--count", "12")
    number = 0
    deadline_s = time.monotonic() + 60
    while events.poll() is None and time.monotonic() < deadline_s:
        number += 1
        ask_about(graph, (f"d{number}", f"e{number}"), f"q{number}")
    out, _ = events.communicate(timeout=5)
    records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == 12
    by_topic = {record["topic"]: record for record in records}
    assert {"kv-events", "pic-events", "decisions"} <= set(by_topic)
    assert all(isinstance(record, dict) and len(record) > 2 for record in by_topic.values())


def test_a_request_is_explained_with_the_workers_that_were_compared(graph: RunningGraph) -> None:
    explaining = start_reader(graph, "explain", "--timeout", "60")
    receipts: list[Json] = []
    while explaining.poll() is None:
        receipts.append(ask_about(graph, (f"x{len(receipts)}", "x"), f"q{len(receipts)}"))
    told = json.loads(explaining.communicate(timeout=5)[0])
    decision = told["decision"]
    (receipt,) = [one for one in receipts if one["request_id"] == decision["request_id"]]
    compared = [candidate["worker"]["worker_id"] for candidate in decision["candidates"]]
    assert compared[0] == receipt["worker"]["worker_id"]
    assert set(compared) == prefill_ids(graph)
    assert f" of {receipt['prompt_tokens']:,} tokens" in told["why"][0]


def split_of(graph: RunningGraph, process: ProcessInfo, name: str) -> float:
    return ProcessMetrics(graph.metrics_of(process)).total(f"dynamo_component_nebula_{name}")


def test_the_split_moves_and_every_worker_follows_while_requests_are_served(graph: RunningGraph) -> None:
    (router,), workers = graph.processes("Router"), graph.processes("PrefillWorker")
    readers = [start_reader(graph, "events", "--topic", "splits", "--count", "1"), start_reader(graph, "explain")]
    ends_s: list[float] = []

    def ask(number: int) -> None:
        # Few passages, so that they return.
        assert ask_about(graph, (f"s{number % 3}", f"s{number % 5}"), f"split {number}")
        ends_s.append(time.monotonic())

    def has_moved() -> bool:
        ratio = split_of(graph, router, "split_prefix_ratio")
        return ratio < 1 and {split_of(graph, one, "worker_split_prefix_ratio") for one in workers} == {ratio}

    number = 0
    deadline_s = time.monotonic() + 60
    with ThreadPoolExecutor(4) as pool:
        while not (has_moved() and all(reader.poll() is not None for reader in readers)):
            assert time.monotonic() < deadline_s
            list(pool.map(ask, range(number, number + 8)))
            number += 8
    # Nothing stood still, though a busy machine may stop a process for a while.
    assert max(after - before for before, after in pairwise(sorted(ends_s))) < 3
    review, explained = (json.loads(reader.communicate(timeout=5)[0]) for reader in readers)
    assert review["review"]["window_requests"] == 8
    assert review["review"]["prefix_ratio"] <= review["review"]["from_prefix_ratio"]
    assert "of each store for prefix blocks" in explained["split"]
    assert ProcessMetrics(graph.metrics_of(router)).total(
        "dynamo_component_nebula_split_reviews_total", verdict="moved"
    )


def test_every_documented_metric_is_exported(graph: RunningGraph) -> None:
    router_part, worker_part = (ROOT / "docs/metrics.md").read_text().split("## Prefill worker")
    names = re.compile(r"`(dynamo_component_nebula_\w+)`")
    (router,) = graph.processes("Router")
    worker = graph.processes("PrefillWorker")[0]
    for part, process in ((router_part, router), (worker_part, worker)):
        documented, exported = set(names.findall(part)), graph.metrics_of(process)
        assert documented
        assert not {name for name in documented if not re.search(rf"\b{name}\b", exported)}


def test_a_killed_prefill_worker_fails_no_request_and_comes_back(graph: RunningGraph) -> None:
    victim = graph.processes("PrefillWorker")[0]
    dead_id = worker_id_of(graph, victim)
    (router,) = graph.processes("Router")

    def kill() -> None:
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)

    receipts = ask_at_once(graph, "kill", on_first_half_sent=kill)
    assert len(receipts) == 24
    assert receipts[-1]["worker"]["worker_id"] != dead_id

    def knows_both() -> bool:
        return graph.info.ready and ProcessMetrics(graph.metrics_of(router)).total(WORKERS) == 2

    eventually(knows_both, "the worker is back in the router's index")
    (new_id,) = prefill_ids(graph) - {receipts[-1]["worker"]["worker_id"]}
    numbers = iter(range(100))

    def serves_again() -> bool:
        batch = ask_at_once(graph, f"again {next(numbers)}")
        return new_id in {receipt["worker"]["worker_id"] for receipt in batch}

    eventually(serves_again, "the restarted worker is used")


def test_ctrl_c_ends_everything_within_ten_seconds(graph: RunningGraph) -> None:
    pids = graph.all_pids()
    assert len(pids) >= 7  # supervisor, NATS, frontend, router, three workers
    assert graph.stop(signal.SIGINT) == 0
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not list(Path(graph.folder, "run").glob("*.json"))
