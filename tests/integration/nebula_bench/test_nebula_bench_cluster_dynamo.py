"""The virtual cluster against Dynamo's own router and mock engine."""

from pathlib import Path

import pytest
from support.small_traces import dialog_trace, retrieval_trace

from nebula_bench.adapters.dynamo import replay_tool
from nebula_bench.adapters.dynamo.replay_tool import MISSING, has_replay
from nebula_bench.cluster.cell import read_workload
from nebula_bench.cluster.settings import ClusterSettings, LoadSettings
from nebula_bench.errors import CellError
from nebula_bench.paper.dynamo_agreement import compare_with_dynamo
from nebula_bench.workload import TraceRequest

MAX_HIT_POINTS = 2.0
MAX_TTFT_RATIO = 0.10


@pytest.fixture
def replay() -> None:
    if not has_replay():
        pytest.skip(MISSING)


def check(trace: tuple[TraceRequest, ...], rate_per_s: float) -> None:
    agreement = compare_with_dynamo(trace, LoadSettings(rate_per_s=rate_per_s), ClusterSettings())
    assert agreement.hit_points <= MAX_HIT_POINTS
    assert agreement.ttft_ratio <= MAX_TTFT_RATIO


@pytest.mark.usefixtures("replay")
def test_retrieval_prompts_hit_and_wait_as_in_dynamos_replay() -> None:
    check(retrieval_trace(300), rate_per_s=120.0)


@pytest.mark.usefixtures("replay")
def test_dialogs_hit_and_wait_as_in_dynamos_replay() -> None:
    check(dialog_trace(num_sessions=30, num_turns=8), rate_per_s=80.0)


@pytest.mark.usefixtures("replay")
@pytest.mark.parametrize(
    ("workload", "rate_per_s"), [("ragpulse", 40.0), ("quac_recon", 40.0), ("chatdev", 12.0), ("tau_retail", 40.0)]
)
def test_real_traces_hit_and_wait_as_in_dynamos_replay(workload: str, rate_per_s: float, shared_dir: Path) -> None:
    check(read_workload(shared_dir / "data", workload, limit=600), rate_per_s)


def test_a_dynamo_without_replay_is_told_with_the_version_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_tool, "has_replay", lambda: False)
    with pytest.raises(CellError, match=r"needs ai-dynamo 1\.4\.2"):
        check(retrieval_trace(40), rate_per_s=1.0)
