"""What each way to divide the store saves on a small trace."""

from support.small_traces import retrieval_trace

from nebula_bench.split.cache_prompt import CachePrompt, cache_prompts
from nebula_bench.split.comparison import Division, SplitRow, compare_divisions, num_runs
from nebula_bench.split.outcome import Outcome
from nebula_bench.split.report import to_markdown
from nebula_bench.split.settings import SplitSettings

SETTINGS = SplitSettings(num_workers=2, device_tokens=1_024, ratios=(0.0, 1.0), start_ratio=0.9, window_requests=4)


def prompts(num_requests: int) -> tuple[CachePrompt, ...]:
    """A passage returns after about ten requests, each time behind another."""
    return tuple(cache_prompts(retrieval_trace(num_requests)))


def test_all_divisions_are_compared_on_stores_of_all_workers_together() -> None:
    advanced: list[int] = []
    row = compare_divisions("small", prompts(60), SETTINGS, 5_000, lambda: advanced.append(1))
    assert len(advanced) == num_runs(SETTINGS) == 5  # Static at 0, 0.5 and 1, one LRU, and the controller.
    assert set(row.outcomes) == set(Division)
    best = row.outcomes[Division.BEST_STATIC]
    # 30 passages of 316 tokens on average fit 2 * 5,000 tokens if blocks leave them the room.
    assert best.prefix_ratio == 0.0
    for division in Division:
        assert row.outcomes[division].saved_ratio <= best.saved_ratio + 0.01
    assert row.outcomes[Division.HALVES].hit_ratio < best.hit_ratio - 0.05


def test_the_controller_ends_where_the_best_static_split_is() -> None:
    outcomes = compare_divisions("small", prompts(150), SETTINGS, 5_000).outcomes
    ratio = outcomes[Division.CONTROLLER].prefix_ratio
    assert ratio is not None
    assert ratio < 0.6
    assert outcomes[Division.ONE_LRU].prefix_ratio is None


def test_the_table_has_hits_and_savings_in_percent_and_the_distance_in_points() -> None:
    outcomes = {
        Division.ONE_LRU: Outcome(None, 0.3, 0.2, 0.45),
        Division.HALVES: Outcome(0.5, 0.3, 0.25, 0.5),
        Division.BEST_STATIC: Outcome(0.05, 0.3, 0.3, 0.55),
        Division.CONTROLLER: Outcome(0.1, 0.3, 0.298, 0.546),
    }
    lines = to_markdown([SplitRow("small", 12_500, outcomes)]).splitlines()
    assert len(lines) == 3
    assert lines[2] == (
        "| small | 12,500 | 50.0 / 45.0 | 55.0 / 50.0 | 60.0 / 55.0 (0.05) | 59.8 / 54.6 (0.10) | -0.2 / -0.4 |"
    )
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
