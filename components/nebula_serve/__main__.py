"""The `dynamo` command."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from nebula_serve.assignments import split_overrides
from nebula_serve.errors import ServeError, StartFailedError
from nebula_serve.serve import ServeOptions, serve
from nebula_serve.suggest import nearest_names

INTERRUPTED = 130

_DYNAMO_HELP = """\
Serve large language models with Dynamo.

  dynamo serve graphs:nebula       start a graph: frontend, router and workers on this machine
  dynamo serve --help              options, settings, examples
"""

_SERVE_DESCRIPTION = """\
Start every process of GRAPH, watch over them, and stop them together.

GRAPH is MODULE:NAME. This project brings
  graphs:nebula        Dynamo's frontend, Nebula's segment-aware router, prefill and decode workers
  graphs:dynamo_kv     the same workers behind Dynamo's own KV router
"""

_SERVE_EPILOG = """\
settings:
  Each service has a section of settings: --help-settings lists them all with their defaults.
  The first of these that sets a key wins:
    1. command line   --Router.ttl_s=5   --PrefillWorker.sim.time_scale=2   (values as in YAML)
    2. environment    NEBULA_ROUTER__TTL_S=5   NEBULA_PREFILLWORKER__SIM__TIME_SCALE=2
    3. YAML files     Router: {ttl_s: 5}   (several -f: the later wins)
    4. the graph, then the service's own defaults
  The section Common holds what several services share, such as the model.

planes:
  NATS_SERVER unset: a nats-server starts on a free port; set: that one is used.
  ETCD_ENDPOINTS unset: the processes find each other through files in RUN; set: through etcd.
  RUN is run/ in the working directory; run/<graph>.json tells other commands where the graph is.

engine:
  Common.engine=auto takes vllm where it is installed and runs on this machine, else sim, and says which and why.
  Without Common.model_path vllm serves SmolLM2-135M-Instruct, which is made in models/ when it is missing.

examples:
  dynamo serve graphs:nebula -f configs/nebula-vllm-cpu.yaml
  dynamo serve graphs:nebula -f configs/nebula-7p1d-sim.yaml --PrefillWorker.workers=4 --port 8080
  dynamo serve graphs:nebula --dry-run
  dynamo serve graphs:nebula --service-name PrefillWorker      # one more, for a graph that runs already

exit codes: 0 stopped by Ctrl-C or SIGTERM, 1 a process could not be started, 2 wrong input
"""


_OPTIONS = (
    *("--config-file", "--host", "--port", "--working-dir", "--service-name"),
    *("--dry-run", "--help-settings", "--help"),
)


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `dynamo` command; returns the exit code."""
    parser, serve_parser = _make_parsers()
    overrides, rest = split_overrides(sys.argv[1:] if arguments is None else arguments)
    parsed, unknown = parser.parse_known_args(rest)
    if parsed.command is None:
        parser.print_help()
        return 2
    if unknown:
        serve_parser.error(_unknown_options(unknown))
    try:
        serve(_options(parsed, overrides), os.environ, sys.stdout)
    except ServeError as error:
        print(f"dynamo serve: {error}", file=sys.stderr)
        if isinstance(error, StartFailedError):
            print("".join(f"  {line}\n" for line in error.last_lines), file=sys.stderr, end="")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _make_parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    form = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="dynamo", description=_DYNAMO_HELP, formatter_class=form, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    serve_parser = commands.add_parser(
        "serve",
        help="start a graph and watch over its processes",
        usage="dynamo serve GRAPH [options] [--Service.key=value ...]",
        description=_SERVE_DESCRIPTION,
        epilog=_SERVE_EPILOG,
        formatter_class=form,
        allow_abbrev=False,
    )
    _add_serve_arguments(serve_parser)
    return parser, serve_parser


def _add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("graph", metavar="GRAPH", help="MODULE:NAME, for example graphs:nebula")
    add(
        "-f", "--config-file", metavar="FILE", type=Path, action="append", default=[],
        help="YAML file of settings; may be given several times",
    )  # fmt: skip
    add("--host", help="address of the HTTP frontend (default 127.0.0.1)")
    add("--port", type=int, help="port of the HTTP frontend (default 8000; 0: a free one)")
    add(
        "--working-dir", metavar="DIR", type=Path, default=Path(),
        help="folder for run/ and models/, and to look for GRAPH's module in (default: the current one)",
    )  # fmt: skip
    add("--service-name", metavar="SERVICE", help="start only this service, to join the graph that runs already")
    add("--dry-run", action="store_true", help="print the resolved settings and the exact processes, start nothing")
    add("--help-settings", action="store_true", help="print every setting of GRAPH and exit")


def _options(parsed: argparse.Namespace, overrides: Sequence[str]) -> ServeOptions:
    return ServeOptions(
        graph=parsed.graph,
        working_dir=parsed.working_dir,
        config_files=tuple(parsed.config_file),
        overrides=tuple(overrides),
        host=parsed.host,
        port=parsed.port,
        service_name=parsed.service_name,
        dry_run=parsed.dry_run,
        help_settings=parsed.help_settings,
    )


def _unknown_options(unknown: Sequence[str]) -> str:
    name = unknown[0].partition("=")[0]
    near = nearest_names(name, _OPTIONS)
    return f"unknown argument {name}" + (f"; did you mean {' or '.join(near)}?" if near else "")


if __name__ == "__main__":
    sys.exit(main())
