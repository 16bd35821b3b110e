"""The `nebula` command."""

import sys

import typer

from nebula_bench.errors import BenchError
from nebula_cli.bench_command import bench
from nebula_cli.errors import CliError
from nebula_cli.events_command import events
from nebula_cli.explain_command import explain
from nebula_cli.model_command import model
from nebula_cli.replay_command import replay
from nebula_cli.trace_command import trace
from nebula_serve.errors import ServeError

_USAGE_EXIT_CODE = 2

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(events)
app.command()(explain)
app.command()(replay)
app.command()(model)
app.add_typer(bench, name="bench")
app.add_typer(trace, name="trace")


@app.callback()
def nebula() -> None:
    """Looks into a running Nebula deployment and measures it."""


def main() -> None:
    try:
        app()
    except (CliError, BenchError, ServeError) as error:
        print(f"nebula: {error}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, CliError) else _USAGE_EXIT_CODE)


if __name__ == "__main__":
    main()
