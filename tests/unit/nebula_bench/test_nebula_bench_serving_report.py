"""The replays side by side, and tables in a document."""

from pathlib import Path

import pytest

from nebula_bench.errors import ResultsError
from nebula_bench.replay.loop_lag import LoopLagMeter
from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.replay.runner import ReplayRecord
from nebula_bench.replay.settings import ReplaySettings
from nebula_bench.replay.summary import summarize
from nebula_bench.serving.document import update_document
from nebula_bench.serving.graph_replay import GraphReplay, prefill_quantiles_ms
from nebula_bench.serving.histogram import Histogram
from nebula_bench.serving.markdown_table import markdown_table
from nebula_bench.serving.replay_report import replay_markdown, replay_measurements
from nebula_bench.serving.settings import ServingSettings
from nebula_protocol.ids import RequestId, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.receipt import Receipt, StepWork, Timing

SETTINGS = ServingSettings(trace=Path("demo.jsonl"), num_requests=20)


def receipt(total_s: float) -> Receipt:
    return Receipt(
        request_id=RequestId("r"),
        worker=WorkerWithDpRank(WorkerId(1)),
        epoch=WorkerEpoch(1),
        prompt_tokens=100,
        prefix_hit_tokens=30,
        segment_hit_tokens=20,
        local_hit_tokens=20,
        fetched_hit_tokens=0,
        recomputed_tokens=5,
        computed_tokens=50,
        invalid_hit_tokens=0,
        segments=(),
        timing=Timing(queue_s=0, wait_s=0, compute_s=total_s, total_s=total_s),
        work=StepWork(computed_tokens=50, attention_pairs=0, num_steps=1, step_tokens=50, step_pairs=0, step_s=total_s),
        last_event_ids={},
    )


def outcome(position: int, *, ttft_s: float = 0.1, total_s: float = 0.06, error: str | None = None) -> RequestOutcome:
    return RequestOutcome(
        position=position,
        prompt_tokens=100,
        scheduled_s=position,
        sent_s=position,
        first_content_s=position + ttft_s,
        finished_s=position + ttft_s,
        receipt=receipt(total_s),
        error=error,
    )


def graph_replay(name: str, outcomes: list[RequestOutcome], *, lag_s: float = 0.0005) -> GraphReplay:
    meter = LoopLagMeter()
    meter.lags_s.append(lag_s)
    record = ReplayRecord(outcomes=outcomes, lag=meter)
    replayed = ReplaySettings(url="http://x", rate_per_s=1)
    return GraphReplay(
        graph=name,
        num_prefill_workers=2,
        summary=summarize(record, replayed),
        prefill_ms=prefill_quantiles_ms(outcomes, 1.0),
        step_lag=Histogram((0.001, float("inf")), (10.0, 10.0)),
    )


def both() -> list[GraphReplay]:
    return [graph_replay("nebula", [outcome(0, total_s=0.05)]), graph_replay("dynamo_kv", [outcome(0)])]


def test_each_graph_has_its_rows_and_only_nebulas_source_kinds_have_a_bar() -> None:
    rows = {one.id: one for one in replay_measurements(both())}
    assert rows["nebula_errors"].ok
    assert rows["dynamo_kv_errors"].ok
    assert rows["nebula_ttft_p50_ms"].value == pytest.approx(100)
    assert rows["nebula_prefill_p50_ms"].value == pytest.approx(50)
    assert rows["nebula_hit_ratio"].value == 0.5  # (30 + 20) / 100
    assert rows["plan_kinds"].bar is not None
    assert not rows["plan_kinds"].ok  # These receipts have no segments at all.
    assert rows["nebula_step_lag_p50_ms"].value == pytest.approx(0.5)


def test_a_failed_request_misses_the_bar_and_is_no_answer() -> None:
    failed = graph_replay("nebula", [outcome(0), outcome(1, error="500: lost")])
    rows = {one.id: one for one in replay_measurements([failed])}
    assert (rows["nebula_errors"].value, rows["nebula_errors"].ok) == (1, False)
    assert rows["nebula_answers"].value == 1


def test_prefill_times_are_those_of_answered_requests_in_the_traces_time() -> None:
    outcomes = [outcome(0, total_s=0.2), outcome(1, total_s=9.0, error="cut off")]
    assert prefill_quantiles_ms(outcomes, 2.0).p50 == pytest.approx(100)  # 0.2 s at half speed


def test_the_table_sets_the_graphs_side_by_side() -> None:
    text = replay_markdown(both(), SETTINGS)
    assert "|  | `graphs:nebula` | `graphs:dynamo_kv` |" in text
    assert "| hit ratio | 50.0% | 50.0% |" in text
    assert "`demo.jsonl`" in text


def test_small_lags_let_the_machine_pass_and_large_ones_do_not() -> None:
    slow = graph_replay("nebula", [outcome(0)], lag_s=0.02)
    assert "kept time at scale 1: the largest median lag is 0.50 ms" in replay_markdown(both(), SETTINGS)
    assert "did not keep time at scale 1" in replay_markdown([slow], SETTINGS)  # 20 ms beside 100 ms


def test_a_replay_without_answers_says_so() -> None:
    assert "Nothing was answered" in replay_markdown([graph_replay("nebula", [])], SETTINGS)


def test_a_cell_cannot_break_its_table() -> None:
    assert markdown_table(("a", "b"), [("x|y", "1")]) == "| a | b |\n|-|-:|\n| x\\|y | 1 |\n"


def test_a_section_of_a_document_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    document = tmp_path / "results.md"
    document.write_text("before\n<!-- begin kill -->\nold\n<!-- end kill -->\nafter\n")
    update_document(document, {"kill": "new\n\n"})
    update_document(document, {"kill": "newer\n"})
    assert document.read_text() == "before\n<!-- begin kill -->\nnewer\n<!-- end kill -->\nafter\n"


def test_a_document_without_a_place_for_the_section_is_left_alone(tmp_path: Path) -> None:
    document = tmp_path / "results.md"
    document.write_text("no marks")
    with pytest.raises(ResultsError, match="no place for 'kill'"):
        update_document(document, {"kill": "new"})
    assert document.read_text() == "no marks"
