"""One trace on the running graph under the merged view and those that it is compared with; each in virtual time too."""

from collections.abc import Sequence
from pathlib import Path

from nebula_bench.data_plane.replay_live import replay_live, replay_spec
from nebula_bench.data_plane.replay_run import AccountingReplays, Compared, ReplayedTwice
from nebula_bench.data_plane.replay_settings import LiveReplaySettings, ReplayScene
from nebula_bench.data_plane.replay_virtual import replay_virtual
from nebula_bench.errors import BenchError
from nebula_bench.serving.progress import Progress
from nebula_bench.workload import TraceRequest, read_trace
from nebula_router.settings import Accounting


async def measure_replays(settings: LiveReplaySettings, logs: Path | None, progress: Progress) -> AccountingReplays:
    """
    Raises:
        TraceError: the trace cannot be read.
        BenchError: there is no trace, or a graph does not start or ends too early.
        ServeError: the graph's settings cannot be read.
    """
    if settings.trace is None:
        raise BenchError("part replay needs a trace")
    trace = read_trace(settings.trace, settings.num_requests)

    async def replay(accounting: Accounting, scene: ReplayScene) -> ReplayedTwice:
        return await _replay_twice(accounting, scene, trace, settings, logs, progress)

    return AccountingReplays(
        invalid=Compared(
            settings.invalid, await replay("merged", settings.invalid), await replay("optimistic", settings.invalid)
        ),
        repeated=Compared(
            settings.repeated, await replay("merged", settings.repeated), await replay("events", settings.repeated)
        ),
    )


async def _replay_twice(
    accounting: Accounting,
    scene: ReplayScene,
    trace: Sequence[TraceRequest],
    settings: LiveReplaySettings,
    logs: Path | None,
    progress: Progress,
) -> ReplayedTwice:
    live, graph = await replay_live(accounting, scene, trace, settings, logs, progress)
    progress.begin(f"the same in virtual time, accounting {accounting}", len(trace))
    virtual = replay_virtual(replay_spec(accounting, scene, settings), trace, settings, lambda _: progress.advance())
    return ReplayedTwice(accounting, live, graph, virtual)
