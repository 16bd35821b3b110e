"""`nebula bench data-plane`: what moving segments between workers costs and brings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nebula_bench.data_plane.settings import DataPlaneBenchSettings, DataPlanePart
from nebula_cli import data_plane_options as options
from nebula_cli.checked_settings import make_settings
from nebula_cli.parts_run import run_parts
from nebula_cli.quiet_logs import quiet_logs

_DEFAULTS = DataPlaneBenchSettings()
_Values = Mapping[str, object]


def data_plane(
    part: options.Parts = None,
    transport: options.Transports = None,
    segments: options.Segments = _DEFAULTS.throughput.num_segments,
    tokens: options.SegmentTokens = _DEFAULTS.throughput.segment_tokens,
    repetitions: options.Repetitions = _DEFAULTS.throughput.num_repetitions,
    model: options.Model = _DEFAULTS.fetch.model,
    passages: options.Passages = _DEFAULTS.fetch.passages,
    fetch_pairs: options.FetchPairs = _DEFAULTS.fetch.num_pairs,
    fetch_tokens: options.FetchTokens = _DEFAULTS.fetch.prompt_tokens,
    joined_pairs: options.JoinedPairs = _DEFAULTS.fetch.num_joined,
    trace: options.Trace = None,
    cold_prompts: options.ColdPrompts = _DEFAULTS.parallel.num_prompts,
    cold_time_scale: options.ColdTimeScale = _DEFAULTS.parallel.idle_time_scale,
    loaded_requests: options.LoadedRequests = _DEFAULTS.parallel.num_requests,
    loaded_rate: options.LoadedRate = _DEFAULTS.parallel.rate_per_s,
    loaded_seed: options.LoadedSeeds = None,
    loaded_time_scale: options.LoadedTimeScale = _DEFAULTS.parallel.loaded_time_scale,
    replay_requests: options.ReplayRequests = _DEFAULTS.replay.num_requests,
    replay_rate: options.ReplayRate = _DEFAULTS.replay.rate_per_s,
    replay_seed: options.ReplaySeed = _DEFAULTS.replay.seed,
    replay_time_scale: options.ReplayTimeScale = _DEFAULTS.replay.time_scale,
    invalid_store: options.InvalidStore = _DEFAULTS.replay.invalid.store_capacity_tokens,
    invalid_delay: options.InvalidDelay = _DEFAULTS.replay.invalid.event_delay_s,
    repeated_store: options.RepeatedStore = _DEFAULTS.replay.repeated.store_capacity_tokens,
    repeated_delay: options.RepeatedDelay = _DEFAULTS.replay.repeated.event_delay_s,
    results: options.Results = None,
    docs: options.Docs = None,
    logs: options.Logs = None,
) -> None:
    """Measure what segments that move between workers cost and bring.

    throughput: copies between two processes over each transport, in turn with a plain socket copy of as many bytes.

    fetch: passages that another real worker has, beside computing them, and passages that another worker is computing.
    Needs vLLM and the machine for itself, some five minutes.

    faults: the tests of transfers that go wrong.

    parallel: prompts of 8 new passages on an idle graph of simulated workers, with helpers and on one worker, over fast
    and slow links; and a trace under full load with parallel prefill and without. Some ten minutes.

    replay: a trace under the router's merged accounting, against entries that nothing corrects and against events only,
    each on a graph of simulated workers and in virtual time. Some ten minutes.

    Exit code 1: a bar was missed.
    """
    _run(
        part,
        throughput={
            "transports": tuple(transport) if transport else _DEFAULTS.throughput.transports,
            "num_segments": segments,
            "segment_tokens": tokens,
            "num_repetitions": repetitions,
        },
        fetch={"model": model, "passages": passages, "num_pairs": fetch_pairs}
        | {"prompt_tokens": fetch_tokens, "num_joined": joined_pairs},
        parallel={"trace": trace, "num_prompts": cold_prompts, "idle_time_scale": cold_time_scale}
        | {"num_requests": loaded_requests, "rate_per_s": loaded_rate, "loaded_time_scale": loaded_time_scale}
        | {"seeds": tuple(loaded_seed) if loaded_seed else _DEFAULTS.parallel.seeds},
        replay={"trace": trace, "num_requests": replay_requests, "rate_per_s": replay_rate, "seed": replay_seed}
        | {"time_scale": replay_time_scale}
        | {"invalid": {"store_capacity_tokens": invalid_store, "event_delay_s": invalid_delay}}
        | {"repeated": {"store_capacity_tokens": repeated_store, "event_delay_s": repeated_delay}},
        results=results,
        docs=docs,
        logs=logs,
    )


def _run(
    parts: Sequence[DataPlanePart] | None,
    *,
    throughput: _Values,
    fetch: _Values,
    parallel: _Values,
    replay: _Values,
    results: Path | None,
    docs: Path | None,
    logs: Path | None,
) -> None:
    settings = make_settings(
        DataPlaneBenchSettings, throughput=throughput, fetch=fetch, parallel=parallel, replay=replay, logs=logs
    )
    # The worker takes long to import; the other commands do not need it.
    from nebula_bench.data_plane.benchmark import measure_part

    quiet_logs()
    run_parts(
        parts or tuple(DataPlanePart),
        lambda chosen, progress: measure_part(chosen, settings, progress),
        results=results,
        docs=docs,
        mark_prefix="data-plane-",
    )
