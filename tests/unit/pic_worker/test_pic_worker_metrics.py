"""What a worker counts, as a scraper reads it."""

import asyncio

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.engine_world import EngineWorld, helper, join, passage, planned, span, unplanned
from support.worker_net import WorkerNet

from nebula_protocol.ids import WorkerId, WorkerWithDpRank
from nebula_protocol.messages import SetSplit
from nebula_protocol.plan import Source
from pic_worker.metrics import WorkerMetricName, WorkerMetrics

NAMES = frozenset(WorkerMetricName)


def scraped(metrics: WorkerMetrics) -> dict[str, float]:
    """Samples by name, with the value of their label if they have one; histograms by sum and count."""
    text = generate_latest(metrics.registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        ".".join((sample.name, *sample.labels.values())): sample.value
        for sample in samples
        if "le" not in sample.labels and not sample.name.endswith("_created")
    }


def test_before_any_request_every_metric_is_there_at_zero() -> None:
    metrics = WorkerMetrics()
    metrics.transfers("tcp")
    samples = scraped(metrics)
    bases = {name.partition(".")[0].removesuffix("_sum").removesuffix("_count") for name in samples}
    # Prefills have a label, which gets its values with the first request.
    assert bases == NAMES - {WorkerMetricName.PREFILLS}
    assert set(samples.values()) == {0.0}


def test_a_step_adds_its_duration_tokens_and_lateness() -> None:
    metrics = WorkerMetrics()
    metrics.observe_step(0.25, 300, lag_s=0.004)
    metrics.observe_step(0.5, 20, lag_s=0.006)
    samples = scraped(metrics)
    assert samples[f"{WorkerMetricName.STEP_SECONDS}_sum"] == 0.75
    assert samples[f"{WorkerMetricName.STEP_SECONDS}_count"] == 2
    assert samples[WorkerMetricName.STEP_TOKENS] == 320
    assert samples[f"{WorkerMetricName.STEP_LAG_SECONDS}_sum"] == pytest.approx(0.010)


def test_a_step_that_ends_early_by_rounding_is_on_time() -> None:
    metrics = WorkerMetrics()
    metrics.observe_step(0.25, 300, lag_s=-1e-9)
    assert scraped(metrics)[f"{WorkerMetricName.STEP_LAG_SECONDS}_sum"] == 0


def test_receipts_add_to_the_prefills_of_their_kind() -> None:
    metrics, world = WorkerMetrics(), EngineWorld()
    prompt, help_work = world.serve(unplanned("p", passage(0, 12))), world.serve(helper("h", passage(1, 20)))
    metrics.observe_receipt(prompt, is_helper=False)
    metrics.observe_receipt(prompt, is_helper=False)
    metrics.observe_receipt(help_work, is_helper=True)
    samples = scraped(metrics)
    assert samples[f"{WorkerMetricName.PREFILLS}.prompt"] == 2
    assert samples[f"{WorkerMetricName.PREFILLS}.helper"] == 1


async def test_a_service_tells_the_split_that_it_was_set(net: WorkerNet) -> None:
    worker = net.add(1)
    worker.service.set_split(SetSplit(prefix_ratio=0.125))
    assert scraped(worker.metrics)[WorkerMetricName.SPLIT_PREFIX_RATIO] == 0.125


async def test_simulated_transfers_count_too(net: WorkerNet) -> None:
    home, holder = net.add(1), net.add(2, join_grace_s=0.05)
    tokens = passage(2, 20)
    await holder.service.prefill(unplanned("holds", join(passage(5, 4), tokens), [(4, 24)]))
    wants = join(passage(3, 4), tokens, passage(4, 4))
    plan = [span(wants, 4, 24, Source.FETCH, holder.at)]
    await home.service.prefill(planned("wants", wants, plan, wait_budget_s=1.0))
    missing = join(passage(6, 4), passage(7, 20))
    await home.service.prefill(
        planned("joins", missing, [span(missing, 4, 20, Source.JOIN, holder.at)], wait_budget_s=1.0)
    )
    other = join(passage(8, 4), passage(9, 20))
    from_nobody = [span(other, 4, 20, Source.FETCH, WorkerWithDpRank(WorkerId(9)))]
    await home.service.prefill(planned("asks nobody", other, from_nobody, wait_budget_s=1.0))
    at_home, at_holder = scraped(home.metrics), scraped(holder.metrics)
    ends = {name.split(".")[1]: count for name, count in at_home.items() if "transfers_total" in name and count}
    assert ends == {"fetched": 1, "not_there": 1, "source_gone": 1}
    # 20 tokens of 10 bytes.
    assert at_home[f"{WorkerMetricName.TRANSFER_BYTES}.in.sim"] == 200
    assert at_holder[f"{WorkerMetricName.TRANSFER_BYTES}.out.sim"] == 200
    assert at_home[f"{WorkerMetricName.TRANSFER_SECONDS}_count.sim"] == 1


async def test_a_service_counts_steps_queues_and_waits(net: WorkerNet) -> None:
    worker = net.add(1)
    first = asyncio.create_task(worker.service.prefill(unplanned("first", passage(0, 20))))
    await asyncio.sleep(0.005)
    await worker.service.prefill(unplanned("queues", passage(1, 20)))
    await first
    tokens = passage(2, 20)
    from_nobody = [span(tokens, 4, 16, Source.JOIN, WorkerWithDpRank(WorkerId(2)))]
    net.add(2, join_grace_s=0.05)
    await worker.service.prefill(planned("waits", tokens, from_nobody, wait_budget_s=1.0))
    await worker.service.help(helper("h", passage(3, 20)))
    samples = scraped(worker.metrics)
    # Four steps of 20 tokens at 1 ms.
    assert samples[WorkerMetricName.STEP_TOKENS] == 80
    assert samples[f"{WorkerMetricName.STEP_SECONDS}_sum"] == pytest.approx(0.080)
    # From 5 to 20 ms behind the first; 50 ms until the other worker declined.
    assert samples[WorkerMetricName.QUEUE_SECONDS] == pytest.approx(0.015)
    assert samples[WorkerMetricName.WAIT_SECONDS] == pytest.approx(0.050)
    assert samples[f"{WorkerMetricName.PREFILLS}.prompt"] == 3
    assert samples[f"{WorkerMetricName.PREFILLS}.helper"] == 1
