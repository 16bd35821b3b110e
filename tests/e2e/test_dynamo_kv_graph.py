"""`dynamo serve graphs:dynamo_kv`: the same workers behind Dynamo's own KV router, cutting prompts themselves."""

from collections.abc import Iterator

import pytest
from support.running_graph import RunningGraph, eventually, receipt_of

from nebula_bench.pseudo_tokens import PseudoVocabulary

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGraph]:
    small = ("--PrefillWorker.workers=2", "--Common.time_scale=0.01")
    folder = tmp_path_factory.mktemp("dynamo_kv")
    graph = RunningGraph(folder, "dynamo_kv", "-f", "configs/dynamo_kv-7p1d-sim.yaml", *small)
    try:
        graph.wait_until_ready()
        yield graph
    finally:
        graph.stop()


def test_a_chat_message_is_answered_and_brings_its_receipt(graph: RunningGraph) -> None:
    answer = graph.chat("What does a router do?", max_tokens=12)
    assert answer["choices"][0]["message"]["content"].startswith("This is a simulated answer")
    assert answer["usage"]["completion_tokens"] == 12
    receipt = receipt_of(answer)
    assert receipt["computed_tokens"] == receipt["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert receipt["worker"]["worker_id"] == answer["nvext"]["worker_id"]["prefill_worker_id"]


def test_a_worker_that_cuts_for_itself_reuses_a_marked_passage(graph: RunningGraph) -> None:
    vocabulary = PseudoVocabulary()
    passage = vocabulary.tokens("passage", 512).tolist()
    numbers = iter(range(1_000))

    def is_hit() -> bool:
        """Dynamo's router does not know of segments: the passage is found once its worker is chosen again."""
        question = vocabulary.tokens(f"question {next(numbers)}", 64).tolist()
        answer = graph.complete([*question, *passage, *question], annotations=["nebula.spans=[[64,576]]"])
        return bool(receipt_of(answer)["segment_hit_tokens"] == 512)

    eventually(is_hit, "the passage is a segment hit")
