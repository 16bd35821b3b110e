"""The decision benchmark's report."""

from nebula_bench.decision.measured_point import DecisionPoint
from nebula_bench.decision.report import decision_measurements, render_points, to_markdown
from nebula_bench.decision.timing import Repeated
from nebula_bench.results import Bar


def point(num_workers: int, prompt_tokens: int) -> DecisionPoint:
    return DecisionPoint(
        num_workers=num_workers,
        prompt_tokens=prompt_tokens,
        num_blocks=100_000,
        num_segments=6_000,
        marked=Repeated((800e-6,)),
        unmarked=Repeated((1200e-6,)),
        reading=Repeated((100e-6,)),
        dynamo_booking=Repeated((300e-6,)),
        dynamo_query=Repeated((250e-6,)),
    )


def test_the_ratio_is_of_the_slower_decision_to_dynamos_with_booking() -> None:
    assert point(8, 16_000).ratio == 4.0  # 1200 / 300


def test_only_the_point_of_the_bar_has_one_and_its_times_beside_it() -> None:
    rows = {row.id: row for row in decision_measurements([point(8, 4_000), point(8, 16_000), point(64, 16_000)])}
    assert rows["decision_ratio_16k_8w"].bar == Bar("<=", 3.0)
    assert not rows["decision_ratio_16k_8w"].ok
    assert rows["decision_ratio_4k_8w"].bar is rows["decision_ratio_16k_64w"].bar is None
    assert rows["decision_unmarked_us_16k_8w"].value == 1200.0
    assert len(rows) == 3 + 4


def test_markdown_has_a_line_for_each_point() -> None:
    header, rule, line = to_markdown([point(8, 16_000)]).splitlines()
    assert header.count("|") == rule.count("|") == line.count("|")
    assert line == "| 8 | 16,000 | 800 | 1,200 | 100 | 300 | 250 | 4.00 |"
    assert render_points([point(8, 16_000)]).row_count == 1
