"""Measures the parts of the serving benchmark, each on graphs of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from nebula_bench.errors import BenchError
from nebula_bench.results import Measurement
from nebula_bench.serving.bad_input import measure_bad_input
from nebula_bench.serving.bad_input_report import bad_input_markdown, bad_input_measurements
from nebula_bench.serving.graph_replay import graph_spec, measure_replay
from nebula_bench.serving.handover_kill import SLOW_LINK_S, measure_handover_kills
from nebula_bench.serving.kill_report import kill_markdown, kill_measurements
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.replay_kill import measure_replay_kill
from nebula_bench.serving.replay_report import replay_markdown, replay_measurements
from nebula_bench.serving.settings import Part, ServingSettings
from nebula_bench.serving.stage import measure_stage, stage_markdown
from nebula_bench.workload import TraceRequest, read_trace

NEBULA = "nebula"
DYNAMO_KV = "dynamo_kv"


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    part: Part
    markdown: str
    measurements: tuple[Measurement, ...]


async def measure_part(part: Part, settings: ServingSettings, progress: Progress) -> MeasuredPart:
    """
    Raises:
        TraceError: the trace cannot be read.
        BenchError: a graph does not start, or ends too early; or the part needs a trace and there is none.
    """
    match part:
        case Part.REPLAY:
            return await _replay(_read_trace(part, settings), settings, progress)
        case Part.KILL:
            return await _kill(_read_trace(part, settings), settings, progress)
        case Part.STAGE:
            rows = await measure_stage(_read_trace(part, settings), settings, progress)
            return MeasuredPart(part, stage_markdown(rows), rows)
        case Part.BAD_INPUT:
            outcomes = await measure_bad_input(graph_spec(NEBULA, settings.nebula_config, settings), settings, progress)
            return MeasuredPart(part, bad_input_markdown(outcomes), bad_input_measurements(outcomes))


def _read_trace(part: Part, settings: ServingSettings) -> tuple[TraceRequest, ...]:
    if settings.trace is None:
        raise BenchError(f"part {part} needs a trace")
    return read_trace(settings.trace, settings.num_requests)


async def _replay(trace: Sequence[TraceRequest], settings: ServingSettings, progress: Progress) -> MeasuredPart:
    specs = (
        graph_spec(NEBULA, settings.nebula_config, settings),
        graph_spec(DYNAMO_KV, settings.dynamo_kv_config, settings),
    )
    replays = [await measure_replay(spec, trace, settings, progress) for spec in specs]
    return MeasuredPart(Part.REPLAY, replay_markdown(replays, settings), replay_measurements(replays))


async def _kill(trace: Sequence[TraceRequest], settings: ServingSettings, progress: Progress) -> MeasuredPart:
    spec = graph_spec(NEBULA, settings.nebula_config, settings)
    slow = graph_spec(NEBULA, settings.nebula_config, settings, f"--PrefillWorker.link.floor_s={SLOW_LINK_S}")
    in_replay = await measure_replay_kill(spec, trace, settings, progress)
    before_pull = await measure_handover_kills(slow, settings, progress)
    return MeasuredPart(Part.KILL, kill_markdown(in_replay, before_pull), kill_measurements(in_replay, before_pull))
