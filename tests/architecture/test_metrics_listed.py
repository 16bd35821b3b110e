"""`docs/metrics.md` and the code name the same metrics."""

import re
from pathlib import Path

from nebula_router.metrics import MetricName
from pic_worker.metrics import WorkerMetricName

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
FULL_NAME = re.compile(r"dynamo_component_nebula_[a-z]+(_[a-z]+)*")


def documented() -> set[str]:
    return {match.group() for match in FULL_NAME.finditer(DOCUMENT.read_text())}


def test_every_metric_is_documented_and_every_documented_metric_exists() -> None:
    assert documented() == {name.value for names in (MetricName, WorkerMetricName) for name in names}


def test_names_end_in_a_base_unit_or_say_what_is_counted() -> None:
    wrong_units = ("_ms", "_milliseconds", "_kb", "_mb", "_percent")
    assert not [name for name in documented() if name.removesuffix("_total").endswith(wrong_units)]
