"""How a worker turns prompts and plans into the engine's requests."""

import pytest
from msgspec import structs
from support.engine_world import BLOCK, join, passage, span

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.domain import tenant_domain
from nebula_protocol.fusion import cacheblend
from nebula_protocol.hashing import HashArray, hash_blocks, hash_segment
from nebula_protocol.ids import DomainId, RequestId, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import Estimate, HelperTask, Plan, SegmentPlan, Source
from nebula_protocol.tokens import TokenArray
from pic_worker.core.engine_request import EngineRequest
from pic_worker.errors import BadWorkError
from pic_worker.prompt_cutter import PromptCutter

OWN_DOMAIN = DomainId("domain")
TOKENS = join(passage(0, 4), passage(1, 20), passage(2, 6))
SPANS = ((4, 24),)
NO_OPTIONS = RequestOptions()
EXACT = RequestOptions(pic=False)
ACME = RequestOptions(cache_salt="acme")


def hash_under_lineage(tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray:
    """Differs from plain hashes, and for every lineage."""
    return hash_blocks(tokens, block_size_tokens) + len(lineage)


def cutter(*, pic: bool = True) -> PromptCutter:
    config = CutterConfig(content_chunks=None, min_segment_tokens=8)
    return PromptCutter(config, BLOCK, OWN_DOMAIN, pic, hash_under_lineage)


def plan_of(segments: tuple[SegmentPlan, ...], *, domain_id: DomainId = OWN_DOMAIN) -> Plan:
    return Plan(
        request_id=RequestId("r"),
        domain_id=domain_id,
        target=WorkerWithDpRank(WorkerId(1)),
        segments=segments,
        prefix_hit_tokens=8,
        wait_budget_s=0.5,
        estimate=Estimate(free_in_s=0.0, arrive_in_s=0.0, compute_s=0.0, completion_s=0.0),
    )


PLAN = plan_of((span(TOKENS, 4, 24, Source.LOCAL),))


def cut(
    options: RequestOptions = NO_OPTIONS, plan: Plan | None = None, *, pic: bool = True, tokens: TokenArray = TOKENS
) -> EngineRequest:
    return cutter(pic=pic).engine_request(RequestId("r"), tokens, options, plan)


def test_without_a_plan_the_worker_cuts_and_looks_in_its_own_store() -> None:
    request = cut(RequestOptions(spans=SPANS))
    (segment,) = [cut for cut in request.segments if (cut.start, cut.end) == SPANS[0]]
    assert segment.segment_hash == hash_segment(TOKENS[4:24])
    assert {cut.source for cut in request.segments} == {Source.LOCAL}
    assert (request.has_plan, request.wait_budget_s, request.hold_prompt) == (False, 0.0, True)
    assert request.block_hashes.tolist() == hash_blocks(TOKENS, BLOCK).tolist()


@pytest.mark.parametrize("plan", [None, PLAN], ids=["unplanned", "planned"])
def test_a_fusion_that_the_client_asked_for_reaches_the_engine(plan: Plan | None) -> None:
    assert cut(RequestOptions(spans=SPANS, fusion=cacheblend(0.3)), plan).fusion == cacheblend(0.3)
    assert cut(RequestOptions(spans=SPANS), plan).fusion is None


@pytest.mark.parametrize("spans", [((0, 31),), ((4, 4),), ((4, 12), (8, 20)), ((-1, 4),)], ids=repr)
def test_spans_that_do_not_fit_the_prompt_are_refused(spans: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(BadWorkError):
        cut(RequestOptions(spans=spans))


def test_with_a_plan_its_segments_and_its_wait_are_taken() -> None:
    request = cut(RequestOptions(spans=((0, 8),)), PLAN)
    assert request.segments == PLAN.segments
    assert (request.has_plan, request.wait_budget_s, request.expected_prefix_tokens) == (True, 0.5, 8)
    assert not request.domain_differs


@pytest.mark.parametrize("hands_over", [True, False])
def test_the_prompt_is_held_only_if_someone_will_pull_it(hands_over: bool) -> None:
    assert cut(plan=structs.replace(PLAN, hands_over=hands_over)).hold_prompt is hands_over


def test_a_planned_segment_whose_hash_does_not_fit_its_tokens_is_left_out() -> None:
    wrong = structs.replace(PLAN.segments[0], segment_hash=hash_segment(passage(9, 20)))
    assert cut(plan=plan_of((wrong,))).segments == ()


def test_a_plan_for_another_domain_names_nothing_that_may_be_reused() -> None:
    assert cut(plan=plan_of(PLAN.segments, domain_id=DomainId("other"))).domain_differs
    # The plan of a tenant's request, whose salt the worker does not see in the request, and the reverse.
    assert cut(plan=plan_of(PLAN.segments, domain_id=tenant_domain(OWN_DOMAIN, "acme"))).domain_differs
    assert cut(ACME, PLAN).domain_differs


def test_a_tenants_request_has_its_own_domain_and_lineage() -> None:
    request = cut(ACME, plan_of(PLAN.segments, domain_id=tenant_domain(OWN_DOMAIN, "acme")))
    assert not request.domain_differs
    assert (request.domain_id, request.lineage) == (tenant_domain(OWN_DOMAIN, "acme"), "tenant/acme")
    assert request.block_hashes.tolist() == hash_under_lineage(TOKENS, BLOCK, "tenant/acme").tolist()


def test_requests_for_exact_results_have_a_lineage_that_no_reuse_touches() -> None:
    request = cut(EXACT)
    assert (request.lineage, request.segments) == ("exact/", ())
    assert request.block_hashes.tolist() == hash_under_lineage(TOKENS, BLOCK, "exact/").tolist()
    assert cut(RequestOptions(pic=False, cache_salt="acme")).lineage == "exact/acme"
    assert cut(plan=structs.replace(PLAN, pic=False)).lineage == "exact/"


def test_no_plan_brings_reuse_into_a_request_for_exact_results() -> None:
    request = cut(EXACT, PLAN)
    assert (request.lineage, request.segments) == ("exact/", ())


@pytest.mark.parametrize("plan", [None, PLAN], ids=["own cut", "plan"])
def test_a_worker_without_reuse_serves_everyone_exactly_in_the_common_lineage(plan: Plan | None) -> None:
    request = cut(RequestOptions(spans=SPANS, pic=True), plan, pic=False)
    assert (request.lineage, request.segments) == ("", ())


def test_a_prompt_shorter_than_a_block_has_no_block_hashes() -> None:
    assert cut(tokens=passage(0, BLOCK - 1)).block_hashes.tolist() == []


def helper_task(domain_id: DomainId) -> HelperTask:
    segments = (passage(1, 20), passage(2, 12))
    return HelperTask(
        for_request=RequestId("theirs"),
        domain_id=domain_id,
        segments=tuple((hash_segment(tokens), len(tokens)) for tokens in segments),
    )


@pytest.mark.parametrize("domain_id", [OWN_DOMAIN, tenant_domain(OWN_DOMAIN, "acme")])
def test_helper_work_is_done_in_the_domain_of_the_request(domain_id: DomainId) -> None:
    tokens = join(passage(1, 20), passage(2, 12))
    request = cutter().helper_request(RequestId("h"), helper_task(domain_id), tokens)
    assert (request.domain_id, request.for_request, request.tokens.tolist()) == (domain_id, "theirs", tokens.tolist())


def test_helper_segments_whose_hash_does_not_fit_or_that_are_cut_off_are_left_out() -> None:
    task = helper_task(OWN_DOMAIN)
    wrong_first = cutter().helper_request(RequestId("h"), task, join(passage(9, 20), passage(2, 12)))
    assert wrong_first.segments == task.segments[1:]
    assert wrong_first.tokens.tolist() == passage(2, 12).tolist()
    short = cutter().helper_request(RequestId("h"), task, join(passage(1, 20), passage(2, 11)))
    assert short.segments == task.segments[:1]


@pytest.mark.parametrize("domain_id", ["other", "domain2", "other/domain", ""])
def test_helper_work_of_another_domain_is_refused(domain_id: str) -> None:
    with pytest.raises(BadWorkError):
        cutter().helper_request(RequestId("h"), helper_task(DomainId(domain_id)), passage(1, 20))


def test_a_worker_without_reuse_refuses_helper_work() -> None:
    with pytest.raises(BadWorkError):
        cutter(pic=False).helper_request(RequestId("h"), helper_task(OWN_DOMAIN), passage(1, 20))
