import msgspec
import pytest

from nebula_protocol.errors import UnsupportedVersionError
from nebula_protocol.ids import DomainId, RequestId, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import PLAN_VERSION, Estimate, Plan, check_plan_version

PLAN = Plan(
    request_id=RequestId("r"),
    domain_id=DomainId("d"),
    target=WorkerWithDpRank(WorkerId(1)),
    segments=(),
    prefix_hit_tokens=0,
    wait_budget_s=0.0,
    estimate=Estimate(free_in_s=0.0, arrive_in_s=0.0, compute_s=0.1, completion_s=0.1),
)


def test_a_plan_of_this_version_is_accepted() -> None:
    assert check_plan_version(PLAN) is PLAN


def test_a_plan_of_another_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(UnsupportedVersionError) as raised:
        check_plan_version(msgspec.structs.replace(PLAN, version=PLAN_VERSION + 1))
    assert (raised.value.record, raised.value.version, raised.value.supported) == ("plan", 2, 1)
    assert str(raised.value) == "plan has version 2, this build speaks 1"
