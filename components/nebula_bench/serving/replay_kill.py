"""A prefill worker dies in the middle of a replay."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.serving.decision_feed import DecisionFeed, open_decisions
from nebula_bench.serving.graph_replay import run_replay
from nebula_bench.serving.index_watch import IndexWatch
from nebula_bench.serving.process_metrics import PREFILLS, RETRIES
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import PREFILL_WORKER, ROUTER, GraphError, GraphSpec, ServedGraph, open_graph
from nebula_bench.serving.settings import ServingSettings
from nebula_bench.workload import TraceRequest
from nebula_protocol.ids import WorkerId
from nebula_serve.run_info import ProcessInfo

_KILL_AFTER = 0.3
"""Share of the requests that are answered before: caches are warm, and the restarted worker has time to be used."""
_POLL_S = 0.1
_RETRY_S = 0.01
_PATIENT_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class _Kill:
    worker_id: WorkerId
    process: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayKill:
    """Seconds are counted from the kill, real ones."""

    num_requests: int
    errors: dict[str, int]
    """Failed requests by reason."""
    process: str
    """Which died: one that was at work on some request."""
    num_served_before: int
    """Requests that it had answered by then."""
    num_retries: int
    """Requests that the router placed anew."""
    named_until_s: float
    """When the last decision that counts on the dead worker was made; 0 when none came after the kill."""
    num_decisions_after: int
    """Decisions after that one."""
    fewest_workers: int
    """In the router's index, of `num_workers`."""
    num_workers: int
    known_again_s: float | None
    """When the router's index had all workers again; None: it never did."""
    used_again_s: float | None
    """When the first request of the restarted worker was answered; None: there was none."""
    num_served_after: int
    """Requests that the restarted worker answered."""
    num_helped_after: int
    """Times that the restarted worker computed segments for another."""

    @property
    def num_errors(self) -> int:
        return sum(self.errors.values())


async def measure_replay_kill(
    spec: GraphSpec, trace: Sequence[TraceRequest], settings: ServingSettings, progress: Progress
) -> ReplayKill:
    """Replays the trace and kills a prefill worker that is at work.

    Raises:
        GraphError: the graph does not start, or the replay ended before a worker could be killed.
    """
    progress.begin(f"start graphs:{spec.name}")
    async with open_graph(spec, settings.logs) as graph, open_decisions(graph.info.nats_url) as decisions:
        progress.begin("kill a prefill worker in a replay", len(trace))
        outcomes: list[RequestOutcome] = []

        def take(outcome: RequestOutcome) -> None:
            outcomes.append(outcome)
            progress.advance()

        watch = IndexWatch(partial(graph.metrics, ROUTER))
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch.run())
            killing = tasks.create_task(_kill_one_at_work(graph, outcomes, round(_KILL_AFTER * len(trace))))
            started_s = time.perf_counter()
            await run_replay(graph, trace, settings, take)
            watching.cancel()
            killing.cancel()
        if killing.cancelled():
            raise GraphError("the replay was over before a worker could be killed")
        kill = killing.result()
        return await _describe(graph, kill, outcomes, started_s, decisions, watch)


async def _kill_one_at_work(graph: ServedGraph, outcomes: Sequence[RequestOutcome], num_before: int) -> _Kill:
    while len(outcomes) < num_before:
        await asyncio.sleep(_POLL_S)
    worker_id, process = await _find_busy(graph)
    killed_s = time.perf_counter()
    await graph.kill(process)
    return _Kill(worker_id, process.name, killed_s)


async def _find_busy(graph: ServedGraph) -> tuple[WorkerId, ProcessInfo]:
    """Of a worker with several requests in flight, one will not have finished by the time of the kill."""
    num_attempts = 0
    while (found := await graph.find_at_work(2 if num_attempts < _PATIENT_ATTEMPTS else 1)) is None:
        num_attempts += 1
        await asyncio.sleep(_RETRY_S)
    return found


async def _describe(
    graph: ServedGraph,
    kill: _Kill,
    outcomes: Sequence[RequestOutcome],
    started_s: float,
    decisions: DecisionFeed,
    watch: IndexWatch,
) -> ReplayKill:
    num_workers = len(graph.processes(PREFILL_WORKER))
    restarted = [one for one, process in (await graph.prefill_workers()).items() if process.name == kill.process]
    restarted_metrics = await graph.metrics_of(kill.process)
    served_after = [outcome for outcome in outcomes if _worker_id(outcome) in restarted]
    first_again_s = min((started_s + outcome.finished_s for outcome in served_after), default=None)
    named_s = max(kill.at_s, decisions.last_naming(kill.worker_id) or kill.at_s)
    return ReplayKill(
        num_requests=len(outcomes),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None).most_common()),
        process=kill.process,
        num_served_before=_served_by_worker(outcomes)[kill.worker_id],
        num_retries=round(sum(metrics.total(RETRIES) for metrics in await graph.metrics(ROUTER))),
        named_until_s=named_s - kill.at_s,
        num_decisions_after=decisions.num_without(kill.worker_id, named_s),
        fewest_workers=watch.fewest_after(kill.at_s) or 0,
        num_workers=num_workers,
        known_again_s=_since(kill.at_s, watch.complete_again_s(kill.at_s, num_workers)),
        used_again_s=_since(kill.at_s, first_again_s),
        num_served_after=len(served_after),
        num_helped_after=0 if restarted_metrics is None else round(restarted_metrics.total(PREFILLS, kind="helper")),
    )


def _served_by_worker(outcomes: Sequence[RequestOutcome]) -> Counter[WorkerId]:
    ids = (_worker_id(outcome) for outcome in outcomes)
    return Counter(worker_id for worker_id in ids if worker_id is not None)


def _worker_id(outcome: RequestOutcome) -> WorkerId | None:
    return None if outcome.receipt is None else outcome.receipt.worker.worker_id


def _since(start_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else at_s - start_s
