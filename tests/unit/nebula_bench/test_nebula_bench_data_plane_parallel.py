"""Parallel prefill's prompts, ratios and rows."""

from functools import cache
from pathlib import Path

from nebula_bench.data_plane.parallel import LoadedPair, ParallelPrefill
from nebula_bench.data_plane.parallel_idle import nebula_spec
from nebula_bench.data_plane.parallel_prompts import (
    FAST_LINKS,
    FAST_WHOLE_LINKS,
    PASSAGE_TOKENS,
    SLOW_LINKS,
    SLOW_WHOLE_LINKS,
    ColdAnswer,
    ColdRun,
    Links,
    cold_prompts,
)
from nebula_bench.data_plane.parallel_report import live_ratio, parallel_markdown, parallel_measurements
from nebula_bench.data_plane.parallel_settings import ParallelSettings
from nebula_bench.data_plane.parallel_virtual import VirtualPair, run_pair
from nebula_bench.replay.loop_lag import LoopLagMeter
from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.replay.runner import ReplayRecord
from nebula_bench.replay.summary import summarize
from nebula_bench.serving.graph_replay import GraphReplay
from nebula_bench.serving.histogram import Histogram
from nebula_bench.serving.settings import ServingSettings
from nebula_bench.workload import TraceRequest, TraceSegment

SETTINGS = ParallelSettings(trace=Path("demo.jsonl"))
ONE_REQUEST = (TraceRequest("w", 0, "s", (TraceSegment("passage", "p", 64),)),)


def cold_run(ttft_s: float, num_helpers: int) -> ColdRun:
    return ColdRun(tuple(ColdAnswer(size, ttft_s * size / 1024, num_helpers) for size in PASSAGE_TOKENS))


def replay(ttfts_s: tuple[float, ...], *, error: str | None = None, lag_s: float = 0.001) -> GraphReplay:
    meter = LoopLagMeter()
    meter.lags_s.append(lag_s)
    outcomes = [
        RequestOutcome(
            position=position,
            prompt_tokens=100,
            scheduled_s=position,
            sent_s=position,
            first_content_s=position + ttft_s,
            finished_s=position + ttft_s,
            receipt=None,
            error=error,
        )
        for position, ttft_s in enumerate(ttfts_s)
    ]
    settings = ServingSettings().replay_settings("http://localhost", "m")
    summary = summarize(ReplayRecord(outcomes, meter, wall_s=1.0), settings)
    return GraphReplay("nebula", 7, summary, summary.ttft_ms, Histogram((), ()))


@cache
def virtual_pair() -> VirtualPair:
    """Of one request, which is as fast with and without."""
    return run_pair(ONE_REQUEST, SETTINGS, 1)


def found(*pairs: LoadedPair, slow_whole_helpers: int = 0) -> ParallelPrefill:
    runs: dict[Links | None, ColdRun] = {
        None: cold_run(0.4, 0),
        FAST_LINKS: cold_run(0.1, 6),
        FAST_WHOLE_LINKS: cold_run(0.2, 6),
        SLOW_LINKS: cold_run(0.3, 4),
        SLOW_WHOLE_LINKS: cold_run(0.4, slow_whole_helpers),
    }
    return ParallelPrefill(runs, runs, pairs)


def test_no_passage_of_the_cold_prompts_comes_twice() -> None:
    prompts = cold_prompts(3)
    ids = [segment.id for prompt in prompts for segment in prompt.segments]
    assert len(ids) == len(set(ids))
    # 3 of each of 3 sizes, each with 8 passages and a question of 32 tokens.
    assert len(prompts) == 9
    assert [prompt.prompt_tokens for prompt in prompts[:3]] == [8 * 512 + 32, 8 * 1024 + 32, 8 * 2048 + 32]


def test_a_graph_is_told_its_links_and_whether_to_use_helpers() -> None:
    spec = nebula_spec(SETTINGS, 4.0, parallel=False, links=SLOW_WHOLE_LINKS)
    assert spec.overrides == (
        "--Common.time_scale=4.0",
        "--Router.parallel_prefill=false",
        "--PrefillWorker.link.bytes_per_s=2800000000.0",
        "--PrefillWorker.stream_pieces=1",
    )


def test_a_cold_prompts_time_is_the_median_of_its_size() -> None:
    answers = [ColdAnswer(512, ttft_s, 2) for ttft_s in (0.1, 0.9, 0.2)]
    run = ColdRun((*answers, ColdAnswer(1024, 5.0, 6)))
    assert run.ttft_s(512) == 0.2
    assert run.num_helpers(512) == 6


def test_rows_compare_helpers_with_one_worker() -> None:
    rows = {row.id: row for row in parallel_measurements(found(slow_whole_helpers=1))}
    assert rows["parallel_ttft_ratio"].value == 0.1 / 0.4
    assert rows["parallel_ttft_ratio_512"].value == 0.1 / 0.4
    assert rows["parallel_whole_ttft_ratio"].value == 0.2 / 0.4
    # One prompt of each of three sizes: 4 helpers each, and 1 each.
    assert rows["parallel_slow_link_layered_helpers"].value == 12
    assert rows["parallel_slow_link_helpers"].value == 3
    assert not rows["parallel_slow_link_helpers"].ok


def test_the_loaded_ratio_is_the_median_over_the_seeds() -> None:
    pairs = [
        LoadedPair(seed, replay((parallel_s,) * 3), replay((0.2,) * 3), virtual_pair())
        for seed, parallel_s in enumerate((0.1, 0.3, 0.2))
    ]
    rows = {row.id: row for row in parallel_measurements(found(*pairs))}
    # 0.1 / 0.2, 0.3 / 0.2 and 0.2 / 0.2.
    assert rows["parallel_loaded_ratio"].value == 1.0
    assert rows["parallel_loaded_errors"].value == 0


def test_failed_requests_miss_a_bar_of_their_own() -> None:
    pair = LoadedPair(1, replay((0.1, 0.1), error="gone"), replay((0.2,)), virtual_pair())
    rows = {row.id: row for row in parallel_measurements(found(pair))}
    assert live_ratio(pair) is None
    assert "parallel_loaded_ratio" not in rows
    assert rows["parallel_loaded_errors"].value == 2


def test_the_tables_name_links_sizes_and_seeds() -> None:
    pair = LoadedPair(3, replay((0.1,)), replay((0.2,), lag_s=0.04), virtual_pair())
    lines = parallel_markdown(found(pair), SETTINGS).splitlines()
    # 1,024 tokens: 100 ms and 400 ms.
    assert "| 8 x 1,024 | 22 GB/s | layer by layer | 100 | 400 | 0.25 | 0.25 | 6.0 |" in lines
    assert "| 8 x 2,048 | 2.8 GB/s | as a whole | 800 | 800 | 1.00 | 1.00 | 0.0 |" in lines
    assert any(line.startswith("| 3 | 100 / 100 | 200 / 200 | 0.500 | 1.000 |") for line in lines)
    # The larger of 1 ms and 40 ms; no worker's lag is known.
    assert any(line.endswith("| 40.0 / 40.0 | - / - |") for line in lines)
