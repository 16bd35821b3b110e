"""The benchmark on an engine without a model: conditions, journal, summary, report."""

from pathlib import Path

import pytest
from support.quality_world import ShelfEngine, prompts, settings

from nebula_bench.errors import BenchError
from nebula_bench.quality.benchmark import journal_key, measure_prompts, missing_prompts
from nebula_bench.quality.budget import kl_at, method_line
from nebula_bench.quality.journal import Journal
from nebula_bench.quality.measurement import conditions_of, measure_prompt
from nebula_bench.quality.outcome import PromptOutcome
from nebula_bench.quality.plot import plot_quality
from nebula_bench.quality.report import quality_markdown
from nebula_bench.quality.rows import quality_rows
from nebula_bench.quality.settings import QualitySettings
from nebula_bench.quality.summary import QualitySummary, summarize_quality
from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, FusionMethod, legolink
from nebula_protocol.ids import Origin


def outcomes_of(chosen: QualitySettings, error: float = 0.5) -> list[PromptOutcome]:
    engine = ShelfEngine(error)
    return [measure_prompt(prompt, engine, chosen) for prompt in prompts(chosen)]


def summary_of(chosen: QualitySettings, error: float = 0.5) -> QualitySummary:
    return summarize_quality(outcomes_of(chosen, error), chosen)


def test_every_fusion_is_measured_for_both_origins() -> None:
    chosen = settings(full_every=2)
    (first, second) = (conditions_of(chosen, number) for number in (0, 1))
    assert len(first) == 2 * len(chosen.fusions) == 16
    assert len(second) == 14
    assert all(condition.fusion != FULL_FUSION for condition in second)


def test_recomputing_all_is_exactly_full_prefill() -> None:
    summary = summary_of(settings())
    for origin in Origin:
        found = summary.find(origin, "full")
        assert found is not None
        assert (found.kl_max, found.agreement.value, found.recomputed_ratio) == (0.0, 1.0, 1.0)


def test_an_origin_that_errs_more_is_told_apart() -> None:
    summary = summary_of(settings(fusions=(NO_FUSION,)))
    alone, in_context = (summary.find(origin, "none") for origin in (Origin.ALONE, Origin.IN_CONTEXT))
    assert alone is not None
    assert in_context is not None
    assert alone.kl.value > 2 * in_context.kl.value > 0
    (ratio,) = summary.origin_ratios
    assert ratio.fusion == "none"
    assert ratio.kl_ratio.value == pytest.approx(alone.kl.value / in_context.kl.value)


def test_agreement_is_the_share_before_the_first_difference() -> None:
    summary = summary_of(settings(fusions=(NO_FUSION,)))
    # Alone errs by 1.0: the first token of 4 agrees, the second does not. In context it errs by 0.5: all 4 agree.
    alone, in_context = (summary.find(origin, "none") for origin in (Origin.ALONE, Origin.IN_CONTEXT))
    assert alone is not None
    assert in_context is not None
    assert (alone.agreement.value, alone.first_token_agreement) == (0.25, 1.0)
    assert in_context.agreement.value == 1.0


def test_the_recomputed_share_is_what_the_engine_counted() -> None:
    chosen = settings(fusions=(legolink(8),), num_prompts=2, seeds=(1,), min_segment_tokens=32, max_segment_tokens=32)
    found = summary_of(chosen).find(Origin.ALONE, "legolink:8")
    assert found is not None
    assert found.recomputed_ratio == 8 / 32


def test_an_engine_that_reuses_less_than_there_is_measures_nothing() -> None:
    class Forgetful(ShelfEngine):
        def __init__(self) -> None:
            super().__init__()
            self._shelves = _NoShelves()

    class _NoShelves(dict[str, dict[tuple[int, ...], float]]):
        def setdefault(
            self, key: str, default: dict[tuple[int, ...], float] | None = None
        ) -> dict[tuple[int, ...], float]:
            return {}

    (prompt, *_) = prompts(settings())
    with pytest.raises(BenchError, match=r"prompt 1/0, alone, none: 0 of \d+ tokens were reused"):
        measure_prompt(prompt, Forgetful(), settings())


def run(chosen: QualitySettings, path: Path, limit: int | None = None, key: str = "k") -> tuple[ShelfEngine, Journal]:
    engine, journal = ShelfEngine(), Journal(path, key)
    waiting = missing_prompts(prompts(chosen), journal, limit)
    measure_prompts(waiting, engine, journal, chosen, on_finished=lambda _: None)
    return engine, journal


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    chosen = settings()
    _, part = run(chosen, tmp_path / "journal", limit=4)
    assert sorted(part.outcomes) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    engine, whole = run(chosen, tmp_path / "journal")
    assert sorted(whole.outcomes) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    idle, _ = run(chosen, tmp_path / "journal")
    assert engine.num_calls > idle.num_calls == 0
    assert sorted(whole.outcomes.values(), key=repr) == sorted(outcomes_of(chosen), key=repr)


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run(settings(), path, limit=3)
    path.write_bytes(path.read_bytes()[:-20])
    assert len(Journal(path, "k").outcomes) == 2
    run(settings(), path)
    assert len(Journal(path, "k").outcomes) == 6


@pytest.mark.parametrize("content", [None, b"", b"other things\n"])
def test_another_measurement_s_journal_is_begun_anew(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "journal"
    if content is None:
        run(settings(), path, key="of other code")
    else:
        path.write_bytes(content)
    _, journal = run(settings(), path, limit=1)
    assert len(journal.outcomes) == len(Journal(path, "k").outcomes) == 1


def test_only_what_changes_an_outcome_changes_the_journal_s_key() -> None:
    def key(commit: str = "c", model: bytes = b"m", passages: bytes = b"p", **changes: object) -> str:
        return journal_key(settings(**changes), commit, model, passages)

    assert key() == key(num_prompts=100, seeds=(4, 5), num_resamples=5000, model=b"m")
    others = [key(commit="d"), key(model=b"n"), key(passages=b"q"), key(num_answer_tokens=5), key(fusions=(NO_FUSION,))]
    assert len({key(), *others}) == 6


def test_rows_carry_the_bars_that_quality_is_held_to() -> None:
    rows = {row.id: row for row in quality_rows(summary_of(settings()))}
    assert rows["kl_full"].value == 0
    assert rows["kl_full"].ok
    assert rows["kl_legolink16"].value == rows["kl_legolink16_in_context"].value
    assert rows["kl_legolink16_alone"].value > rows["kl_legolink16_in_context"].value
    low, high = rows["kl_none_alone_low"].value, rows["kl_none_alone_high"].value
    assert low <= rows["kl_none_alone"].value <= high
    bars = {name: row.bar for name, row in rows.items() if row.bar is not None}
    assert set(bars) == {"kl_full", "kl_legolink16", "kl_cacheblend15"}


def test_conditions_that_were_not_measured_have_no_rows() -> None:
    rows = {row.id for row in quality_rows(summary_of(settings(fusions=(NO_FUSION,))))}
    assert "kl_none" in rows
    assert not {"kl_full", "kl_legolink16", "kl_cacheblend15"} & rows


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(BenchError, match="no prompt"):
        summarize_quality([], settings())


def test_the_report_names_every_condition_with_its_interval() -> None:
    summary = summary_of(settings())
    page = quality_markdown(summary, "Made by hand.")
    for fusion in settings().fusions:
        assert page.count(f"| `{fusion}` | alone |") == page.count(f"| `{fusion}` | in context |") == 1
    none = summary.find(Origin.ALONE, "none")
    assert none is not None
    assert f"{none.kl.value:.4f} [{none.kl.low:.4f}, {none.kl.high:.4f}]" in page
    assert page.endswith("Made by hand.\n")


def test_methods_are_compared_at_equal_shares_on_straight_lines() -> None:
    chosen = settings(num_prompts=2, seeds=(1,), min_segment_tokens=40, max_segment_tokens=40)
    line = method_line(summary_of(chosen), FusionMethod.CACHEBLEND, Origin.ALONE)
    # 40 tokens: none, 2, 6 and 12 of them.
    assert [one.recomputed_ratio for one in line] == [0.0, 0.05, 0.15, 0.3]
    assert kl_at(line, 0.1) == pytest.approx((line[1].kl.value + line[2].kl.value) / 2)
    assert line[0].kl.value > line[1].kl.value > line[2].kl.value
    assert kl_at(line, 0.31) is None
    assert kl_at([], 0.1) is None


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    plot_quality(summary_of(settings()), tmp_path / "quality.png")
    assert (tmp_path / "quality.png").read_bytes().startswith(b"\x89PNG")
