"""Which NATS server a command listens to, and to which deployment on it."""

from pathlib import Path
from typing import Annotated

import typer

from nebula_cli.deployment import find_deployment
from nebula_cli.errors import CliError

NatsUrl = Annotated[
    str | None,
    typer.Option(
        envvar="NATS_SERVER", help="URL of the NATS server.", show_default="the one of the graph that runs here"
    ),
]
GraphName = Annotated[str | None, typer.Option(help="Which graph, where several run here.")]
WorkingDir = Annotated[Path, typer.Option(help="Working directory of `dynamo serve`.")]


def find_event_source(nats: str | None, graph: str | None, working_dir: Path) -> tuple[str, frozenset[str]]:
    """The URL, and the namespaces to look at: all of them where the server was named.

    Raises:
        CliError: no server is named, and no graph runs in the folder, or several do.
    """
    if nats and graph is None:
        return nats, frozenset()
    deployment = find_deployment(working_dir, graph)
    if deployment is None:
        raise CliError("no NATS server is known: no graph runs here; set NATS_SERVER or give --nats URL")
    return deployment.nats_url, frozenset(deployment.namespaces)
