"""The same replay in virtual time: settings, arrivals and real delays of the graph, without the machine."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from graphs import nebula
from nebula_bench.cluster.outcome import Outcome
from nebula_bench.cluster.repeated import ComputedAgain
from nebula_bench.cluster.settings import ClusterSettings, LoadSettings, NetworkSettings, NoiseSettings
from nebula_bench.cluster.simulation import Record, Simulation
from nebula_bench.cluster.summary import summarize
from nebula_bench.data_plane.replay_run import AccountingRun, mean_phases_ms
from nebula_bench.data_plane.replay_settings import LiveReplaySettings
from nebula_bench.policies.catalogue import find_policy
from nebula_bench.replay.summary import quantiles_ms
from nebula_bench.serving.served_graph import PREFILL_WORKER, ROUTER, GraphSpec
from nebula_bench.workload import TraceRequest
from nebula_protocol.cut_settings import CutSettings
from nebula_router.settings import RouterSettings
from nebula_serve.machine import Machine
from nebula_serve.resolve import ResolvedService
from nebula_serve.serve import ServeOptions, resolve_graph
from pic_worker.settings import WorkerSettings

Settings = TypeVar("Settings", RouterSettings, WorkerSettings)

_DECODE_WORKER = "DecodeWorker"
_POLICY = "nebula"
# Real seconds, whatever the time scale: one message over loopback between two processes, and one through NATS.
_NETWORK = NetworkSettings(message_s=0.0005, event_delay_s=0.002)
# The simulated workers of a graph keep to the table exactly.
_NO_NOISE = NoiseSettings(step_ratio=0.0, worker_ratio=0.0)
# The trace's spans name every segment; there is no tokenizer here to find other marks with.
_SPANS_ONLY = CutSettings(message_starts=())


def replay_virtual(
    spec: GraphSpec,
    trace: Sequence[TraceRequest],
    settings: LiveReplaySettings,
    on_finished: Callable[[Outcome], None] = lambda _: None,
) -> AccountingRun:
    """
    Raises:
        ServeError: the graph's settings cannot be read.
    """
    cluster, scale = cluster_of(spec), settings.time_scale
    # In real seconds, as live: what the code does not scale weighs as much here as there.
    load = LoadSettings(rate_per_s=settings.rate_per_s / scale, seed=settings.seed, output_tokens=settings.max_tokens)
    return _run_of(Simulation(cluster, load, find_policy(_POLICY)).run(trace, on_finished), scale)


def cluster_of(spec: GraphSpec) -> ClusterSettings:
    """The cluster that `dynamo serve` would start.

    Raises:
        ServeError: a file or a setting is wrong.
    """
    options = ServeOptions(
        graph=f"graphs:{spec.name}", working_dir=Path(), config_files=(spec.config,), overrides=spec.overrides
    )
    resolved, _ = resolve_graph(nebula, options, {}, Path.cwd(), Machine.here())
    services = {service.spec.name: service for service in resolved.services}
    workers = services[PREFILL_WORKER]
    return ClusterSettings(
        prefill_workers=workers.num_processes,
        decode_workers=services[_DECODE_WORKER].num_processes,
        worker=_settings_of(workers, WorkerSettings),
        router=_settings_of(services[ROUTER], RouterSettings),
        network=_NETWORK,
        noise=_NO_NOISE,
    )


def _settings_of(service: ResolvedService, model: type[Settings]) -> Settings:
    values = service.process_settings({"cut": _SPANS_ONLY.model_dump()}).model_dump()
    return model.model_validate(values)


def _run_of(record: Record, scale: float) -> AccountingRun:
    summary = summarize(record, warmup_requests=0)
    timed = [
        (outcome.receipt, outcome.ttft_s)
        for outcome in record.outcomes
        if outcome.receipt is not None and outcome.ttft_s is not None
    ]
    repeated = summary.repeated
    return AccountingRun(
        ttft_ms=quantiles_ms([ttft_s for _, ttft_s in timed], scale),
        tokens=summary.tokens,
        computed_again=ComputedAgain(repeated.repeated, repeated.on_purpose, repeated.fallback),
        phases_ms=mean_phases_ms(timed, scale),
        num_errors=summary.num_errors,
    )
