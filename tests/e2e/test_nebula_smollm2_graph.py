"""`dynamo serve graphs:nebula` with real workers: SmolLM2 on vLLM through frontend, router, prefill and decode."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.running_graph import Json, RunningGraph, receipt_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

READY_LIMIT_S = 400.0
SYSTEM = "You answer from the texts that the user gives, in one short sentence."
RIVER = (
    "The Odra rises in the Moravian hills, leaves them through a broad gate and runs north-west past Ostrava, where "
    "coal barges once waited in long rows for the spring water. Below the town its valley widens into wet meadows. "
    "Storks nest there on every second chimney, and the villages hold a fair for them on the first Sunday of May."
)
MILL = (
    "The paper mill at Harrachov was built in 1712 beside a glass works, since both needed the same clear stream. It "
    "made paper from linen rags, four sheets a minute, and a boy of ten carried each pile to the drying loft. When "
    "wood pulp came the mill stood idle for thirty years, until a bookbinder bought it and started the wheel again."
)
LAMP = (
    "A lighthouse keeper on the island of Heligoland kept a diary for forty-one years. Most entries give the wind, the "
    "height of the tide and the amount of oil that the lamp had used. On the night of the great storm he wrote one "
    "line only: the lamp burned, and eleven ships came home. His daughter read the diary aloud to visitors."
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Iterator[RunningGraph]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    models = f"--Common.models_dir={smollm2_dir.parent}"
    graph = RunningGraph(tmp_path_factory.mktemp("real"), "nebula", "-f", "configs/nebula-vllm-cpu.yaml", models)
    try:
        graph.wait_until_ready(READY_LIMIT_S)
        yield graph
    finally:
        graph.stop()


def ask_about(graph: RunningGraph, passages: tuple[str, ...], question: str, *annotations: str) -> Json:
    """The answer to a question behind passages, each a message of its own and therefore a segment."""
    texts = [(SYSTEM, "system"), *((passage, "user") for passage in passages), (question, "user")]
    messages = [{"role": role, "content": text} for text, role in texts]
    return graph.ask(messages, temperature=0.0, max_tokens=24, annotations=list(annotations))


def text_of(answer: Json) -> str:
    content: str = answer["choices"][0]["message"]["content"]
    return content


def test_a_question_is_answered_by_the_model(graph: RunningGraph) -> None:
    """Which words it takes depends on how the processor rounds bfloat16, so only that they are words counts."""
    answer = graph.chat("What is the capital of France?", temperature=0.0, max_tokens=16)
    assert len(re.findall(r"[^\W\d_]{2,}", text_of(answer))) >= 4


def test_passages_in_another_order_are_segment_hits_and_the_answer_is_fluent(graph: RunningGraph) -> None:
    first = receipt_of(ask_about(graph, (RIVER, MILL, LAMP), "What did the boy carry?"))
    answer = ask_about(graph, (LAMP, RIVER, MILL), "What was the mill built beside?")
    second = receipt_of(answer)
    assert first["segment_hit_tokens"] == 0
    # Three passages of more than 64 tokens, each found where it was not before.
    assert second["segment_hit_tokens"] > 3 * 64
    assert 0 < second["recomputed_tokens"] < second["segment_hit_tokens"]
    counted = second["prefix_hit_tokens"] + second["segment_hit_tokens"] + second["computed_tokens"]
    assert counted == second["prompt_tokens"]
    assert "glass" in text_of(answer).lower()


def test_without_pic_nothing_but_a_prefix_is_reused(graph: RunningGraph) -> None:
    ask_about(graph, (MILL, RIVER), "When was the mill built?")
    receipt = receipt_of(ask_about(graph, (RIVER, MILL), "When was the mill built?", "nebula.pic=off"))
    assert receipt["segment_hit_tokens"] == 0
