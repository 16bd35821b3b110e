"""Options of `nebula bench data-plane`, by the part that they belong to."""

from pathlib import Path
from typing import Annotated

import typer

from nebula_bench.data_plane.settings import DataPlanePart

_THROUGHPUT, _FETCH, _PARALLEL, _REPLAY = "Part throughput", "Part fetch", "Part parallel", "Part replay"
_REPLAYS = "Parts parallel and replay"

Parts = Annotated[
    list[DataPlanePart] | None,
    typer.Option("--part", help="Only this part; several allowed.", show_default="all"),
]
Results = Annotated[Path | None, typer.Option(help="Write rows to this results file.", show_default=False)]
Docs = Annotated[
    Path | None, typer.Option(help="Put the tables into this document, between its marks.", show_default=False)
]
Logs = Annotated[Path | None, typer.Option(help="Keep the graphs' logs in this folder.", show_default=False)]

Transports = Annotated[
    list[str] | None,
    typer.Option(
        "--transport", help="tcp or nixl; several allowed.", show_default="tcp, nixl", rich_help_panel=_THROUGHPUT
    ),
]
Segments = Annotated[int, typer.Option(help="Segments of one transfer.", rich_help_panel=_THROUGHPUT)]
SegmentTokens = Annotated[int, typer.Option("--tokens", help="Tokens of each.", rich_help_panel=_THROUGHPUT)]
Repetitions = Annotated[int, typer.Option(help="Transfers of each kind, in turn.", rich_help_panel=_THROUGHPUT)]

Model = Annotated[Path, typer.Option(help="Folder of the model that real workers serve.", rich_help_panel=_FETCH)]
Passages = Annotated[Path, typer.Option(help="Texts: .jsonl.gz with id and text.", rich_help_panel=_FETCH)]
FetchPairs = Annotated[
    int, typer.Option(help="Fetched and computed prompts behind each median.", rich_help_panel=_FETCH)
]
FetchTokens = Annotated[int, typer.Option(help="Length of each prompt.", rich_help_panel=_FETCH)]
JoinedPairs = Annotated[
    int, typer.Option(help="Pairs of requests that miss the same passages, on each graph.", rich_help_panel=_FETCH)
]

Trace = Annotated[
    Path | None,
    typer.Option(help="Trace of the replays, .jsonl or .jsonl.gz.", show_default=False, rich_help_panel=_REPLAYS),
]
ColdPrompts = Annotated[int, typer.Option(help="Prompts of each size on the idle cluster.", rich_help_panel=_PARALLEL)]
ColdTimeScale = Annotated[
    float, typer.Option(help="Real seconds per simulated second for these.", rich_help_panel=_PARALLEL)
]
LoadedRequests = Annotated[int, typer.Option(help="The first N requests of the trace.", rich_help_panel=_PARALLEL)]
LoadedRate = Annotated[float, typer.Option(help="Mean arrivals a second (Poisson).", rich_help_panel=_PARALLEL)]
LoadedSeeds = Annotated[
    list[int] | None,
    typer.Option(
        "--loaded-seed",
        help="Of the arrival times; several allowed.",
        show_default="1, 2, 3",
        rich_help_panel=_PARALLEL,
    ),
]
LoadedTimeScale = Annotated[
    float, typer.Option(help="Real seconds per simulated second for the replays.", rich_help_panel=_PARALLEL)
]

ReplayRequests = Annotated[int, typer.Option(help="The first N requests of the trace.", rich_help_panel=_REPLAY)]
ReplayRate = Annotated[float, typer.Option(help="Mean arrivals a second (Poisson).", rich_help_panel=_REPLAY)]
ReplaySeed = Annotated[int, typer.Option(help="Of the arrival times.", rich_help_panel=_REPLAY)]
ReplayTimeScale = Annotated[
    float, typer.Option(help="Real seconds per simulated second, for workers and arrivals.", rich_help_panel=_REPLAY)
]
InvalidStore = Annotated[
    int, typer.Option(help="Tokens of each store in the runs that count invalid hits.", rich_help_panel=_REPLAY)
]
InvalidDelay = Annotated[
    float, typer.Option(help="Simulated seconds that events are late in these runs.", rich_help_panel=_REPLAY)
]
RepeatedStore = Annotated[
    int, typer.Option(help="Tokens of each store in the runs that count repeated computation.", rich_help_panel=_REPLAY)
]
RepeatedDelay = Annotated[
    float, typer.Option(help="Simulated seconds that events are late in these runs.", rich_help_panel=_REPLAY)
]
