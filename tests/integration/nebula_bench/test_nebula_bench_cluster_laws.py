"""Laws of the virtual cluster that hold whatever the policy."""

from itertools import pairwise

import pytest
from support.small_traces import dialog_trace, request, retrieval_trace

from nebula_bench.cluster.cell import CellResult, CellSettings, for_model, run_cell, run_record
from nebula_bench.cluster.settings import ClusterSettings, Crash, LoadSettings, NetworkSettings, NoiseSettings
from nebula_bench.policies.catalogue import POLICIES
from nebula_bench.workload import TraceRequest
from nebula_protocol.plan import Source
from pic_worker.adapters.sim.costs import make_costs

QUIET = ClusterSettings(
    prefill_workers=3,
    network=NetworkSettings(message_s=0.0, event_delay_s=0.0),
    noise=NoiseSettings(step_ratio=0.0, worker_ratio=0.0),
)
TRACE = retrieval_trace(60)


def cell(policy: str = "nebula", rate_per_s: float = 20.0, **changes: object) -> CellSettings:
    """Settings of a small cluster; `changes` are of the cluster."""
    return CellSettings(
        workload="small",
        policy=policy,
        load=LoadSettings(rate_per_s=rate_per_s),
        cluster=QUIET.model_copy(update=changes),
    )


def run(settings: CellSettings, trace: tuple[TraceRequest, ...] = TRACE) -> CellResult:
    return run_cell(settings, trace)


def test_a_lone_request_takes_what_the_table_says() -> None:
    result = run(cell("nebula_no_parallel"), (request(0, ("system", 512), ("question", 512)),))
    step_s = make_costs(QUIET.worker).step.step_s(1024, 1024 * 512)
    assert result.summary.ttft_ms.p50 == pytest.approx(step_s * 1000)


def test_messages_and_nothing_else_add_to_what_the_table_says() -> None:
    settings = cell("nebula_no_parallel", network=NetworkSettings(message_s=0.004, event_delay_s=0.0))
    result = run(settings, (request(0, ("system", 512), ("question", 512)),))
    step_s = make_costs(QUIET.worker).step.step_s(1024, 1024 * 512)
    # One message to the worker and one back, of 4 ms each.
    assert result.summary.ttft_ms.p50 == pytest.approx(step_s * 1000 + 8)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_prompt_token_is_counted_once(policy: str) -> None:
    summary = run(cell(policy)).summary
    tokens = summary.tokens
    parts = (tokens.prefix_hit, tokens.local_hit, tokens.fetched_hit, tokens.helper_computed, tokens.computed)
    assert (summary.num_errors, summary.num_requests) == (0, len(TRACE))
    assert tokens.prompt == sum(one.prompt_tokens for one in TRACE) == sum(parts)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_breakdown_adds_up_to_the_mean(policy: str) -> None:
    record = run_record(cell(policy, rate_per_s=60), TRACE)
    ttfts_s = [outcome.ttft_s for outcome in record.outcomes if outcome.ttft_s is not None]
    parts = run(cell(policy, rate_per_s=60)).summary.breakdown_ms
    whole = parts.queue + parts.transfer_wait + parts.compute + parts.batching + parts.messages
    assert whole == pytest.approx(sum(ttfts_s) / len(ttfts_s) * 1000)


@pytest.mark.parametrize("policy", ["nebula", "dynamo_kv_pic", "oracle"])
def test_the_same_seed_gives_the_same_result(policy: str) -> None:
    noisy = cell(policy, noise=NoiseSettings(), network=NetworkSettings(event_loss_ratio=0.05))
    assert run(noisy) == run(noisy)


def test_another_seed_gives_another_result() -> None:
    noisy = cell(noise=NoiseSettings())
    other = noisy.model_copy(update={"load": LoadSettings(rate_per_s=20.0, seed=2)})
    assert run(noisy).summary.ttft_ms != run(other).summary.ttft_ms


def test_segments_travel_between_workers_and_the_link_costs_time() -> None:
    # Llama's KV is 131,072 bytes a token: at 10 MB/s nothing is worth fetching, at 22 GB/s much is.
    fast = for_model(QUIET, "Llama-3.1-8B")
    link = fast.worker.link.model_copy(update={"bytes_per_s": 1e7})
    slow = fast.model_copy(update={"worker": fast.worker.model_copy(update={"link": link})})
    settings = cell("nebula_no_parallel").model_copy(update={"cluster": fast})
    assert run(settings).summary.tokens.fetched_hit > 0
    assert run(settings.model_copy(update={"cluster": slow})).summary.tokens.fetched_hit == 0


def test_one_link_serves_one_transfer_after_another() -> None:
    narrow = QUIET.worker.link.model_copy(update={"bytes_per_s": 1e9, "floor_s": 0.0})
    worker = QUIET.worker.model_copy(update={"link": narrow})
    record = run_record(cell("nebula_no_parallel", rate_per_s=100.0, worker=worker), TRACE)
    kv_bytes_per_token = record.costs.kv_bytes_per_token
    fetched_tokens = sum(outcome.receipt.fetched_hit_tokens for outcome in record.outcomes if outcome.receipt)
    # Three links of 1 GB/s carry all that was fetched before the last request is done.
    end_s = max(outcome.first_token_at_s or 0.0 for outcome in record.outcomes)
    assert 0 < fetched_tokens * kv_bytes_per_token <= 3 * 1e9 * end_s


def test_a_lost_event_is_noticed_and_the_state_is_asked_for() -> None:
    summary = run(cell(network=NetworkSettings(event_loss_ratio=0.1))).summary
    assert summary.num_lost_messages > 0
    assert summary.num_state_fetches > 0
    assert summary.num_errors == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_no_request_fails_when_a_worker_dies_and_comes_back(policy: str) -> None:
    crashes = (Crash(worker=0, at_s=0.3, down_s=0.3), Crash(worker=1, at_s=0.8, down_s=0.3))
    trace = retrieval_trace(180)
    record = run_record(cell(policy, rate_per_s=100.0, crashes=crashes), trace)
    assert [outcome.error for outcome in record.outcomes] == [None] * len(trace)
    assert sum(outcome.num_attempts - 1 for outcome in record.outcomes) > 0
    # Both are used again in their second life. Who copies nothing finds an empty worker slower than one that is busy.
    lives = {(one.receipt.worker.worker_id, one.receipt.epoch) for one in record.outcomes if one.receipt}
    assert (1, 1) in lives
    assert (2, 1) in lives or policy == "nebula_local"


def test_a_decode_worker_pulls_the_prompt_from_the_second_token_on() -> None:
    # Two workers with room for one prompt each: the second prompt waits until the first is pulled.
    worker = QUIET.worker.model_copy(update={"device_capacity_tokens": 1024, "store_capacity_tokens": 0})
    settings = cell(rate_per_s=1000.0, worker=worker, prefill_workers=1)
    trace = tuple(request(index, (f"text-{index}", 1000)) for index in range(2))
    alone = run(settings, trace[:1]).summary.ttft_ms.p50
    load = LoadSettings(rate_per_s=1000.0, output_tokens=2)
    second = run_record(settings.model_copy(update={"load": load}), trace).outcomes[1].ttft_s
    kv_bytes = 1000 * make_costs(worker).kv_bytes_per_token
    assert alone is not None
    assert second is not None
    # At least: the first prompt's prefill, its transfer (floor and bytes), and its own prefill, less the head start.
    pulled_s = worker.link.floor_s + kv_bytes / worker.link.bytes_per_s
    assert second > 2 * alone / 1000 + pulled_s - 0.01


def test_in_a_closed_loop_no_turn_is_sent_before_the_last_one_is_answered() -> None:
    trace = dialog_trace(num_sessions=2, num_turns=5)
    settings = cell("nebula_no_parallel", rate_per_s=1000.0)
    load = LoadSettings(rate_per_s=1000.0, closed_loop=True)
    outcomes = run_record(settings.model_copy(update={"load": load}), trace).outcomes
    for session in ("0", "1"):
        turns = [outcome for outcome, traced in zip(outcomes, trace, strict=True) if traced.session == session]
        for before, after in pairwise(turns):
            assert before.first_token_at_s is not None
            assert after.arrived_at_s >= before.first_token_at_s


def test_what_is_computed_again_although_the_router_could_not_know_is_repeated() -> None:
    # Round robin knows nothing: the passages are computed by each of three workers.
    blind = run(cell("round_robin_pic")).summary.repeated
    ours = run(cell("nebula")).summary.repeated
    assert blind.repeated > 0
    assert ours.repeated == 0


def test_the_oracle_is_a_bound_on_what_is_computed() -> None:
    oracle = run(cell("oracle")).summary.tokens
    ours = run(cell("nebula")).summary.tokens
    assert oracle.computed + oracle.helper_computed <= ours.computed + ours.helper_computed


def test_a_prefix_pool_fetches_prefixes_and_no_segments() -> None:
    record = run_record(cell("prefix_pool", rate_per_s=100.0), dialog_trace(num_sessions=6, num_turns=6))
    sources = {segment.done for outcome in record.outcomes if outcome.receipt for segment in outcome.receipt.segments}
    fetched = [one.receipt for one in record.outcomes if one.receipt and one.receipt.fetched_hit_tokens]
    assert sources <= {Source.FETCH, Source.LOCAL, Source.COMPUTE}
    assert fetched
    # Prefixes are whole blocks, and exact: nothing of them is computed again.
    assert {receipt.fetched_hit_tokens % 16 for receipt in fetched} == {0}
    assert {receipt.recomputed_tokens for receipt in fetched} == {0}
