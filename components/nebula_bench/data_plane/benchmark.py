"""Measures the parts of the data plane's benchmark."""

from nebula_bench.counted_tests import run_tests
from nebula_bench.data_plane.faults_report import faults_markdown, faults_measurements
from nebula_bench.data_plane.fetch import measure_fetch
from nebula_bench.data_plane.fetch_report import fetch_markdown, fetch_measurements
from nebula_bench.data_plane.measured_part import MeasuredPart
from nebula_bench.data_plane.parallel import measure_parallel
from nebula_bench.data_plane.parallel_report import parallel_markdown, parallel_measurements
from nebula_bench.data_plane.replay import measure_replays
from nebula_bench.data_plane.replay_report import replay_markdown, replay_measurements
from nebula_bench.data_plane.settings import DataPlaneBenchSettings, DataPlanePart
from nebula_bench.data_plane.throughput import measure_throughput, throughput_measurements
from nebula_bench.data_plane.throughput_report import throughput_markdown
from nebula_bench.errors import SceneError
from nebula_bench.serving.progress import Progress
from pic_worker.errors import StartError


async def measure_part(part: DataPlanePart, settings: DataPlaneBenchSettings, progress: Progress) -> MeasuredPart:
    """
    Raises:
        BenchError: what is measured does not start, or fails.
    """
    match part:
        case DataPlanePart.THROUGHPUT:
            return await _throughput(settings, progress)
        case DataPlanePart.FETCH:
            figures = await measure_fetch(settings.fetch, settings.logs, progress)
            return MeasuredPart(part, fetch_markdown(figures), fetch_measurements(figures))
        case DataPlanePart.FAULTS:
            progress.begin("run the tests of transfers and their faults")
            cases = await run_tests(settings.faults.tests)
            return MeasuredPart(part, faults_markdown(cases), faults_measurements(cases))
        case DataPlanePart.PARALLEL:
            found = await measure_parallel(settings.parallel, settings.logs, progress)
            return MeasuredPart(part, parallel_markdown(found, settings.parallel), parallel_measurements(found))
        case DataPlanePart.REPLAY:
            replays = await measure_replays(settings.replay, settings.logs, progress)
            return MeasuredPart(
                part, replay_markdown(replays, settings.replay), replay_measurements(replays, settings.replay)
            )


async def _throughput(settings: DataPlaneBenchSettings, progress: Progress) -> MeasuredPart:
    # The first of each kind does not count.
    progress.begin("transfers", settings.throughput.num_repetitions + 1)
    try:
        throughputs = await measure_throughput(settings.throughput, progress.advance)
    except StartError as error:
        raise SceneError(str(error)) from error
    return MeasuredPart(
        DataPlanePart.THROUGHPUT,
        throughput_markdown(throughputs, settings.throughput),
        throughput_measurements(throughputs),
    )
