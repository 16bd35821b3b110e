"""`nebula explain`: why a request was placed as it was."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, TextIO

import msgspec
import typer
from rich.console import Console

from nebula_cli.choice_words import explain_choice
from nebula_cli.errors import CliError
from nebula_cli.event_feed import open_event_feed
from nebula_cli.event_json import json_fields, parse_json
from nebula_cli.event_record import EventRecord, decode_message
from nebula_cli.event_source import GraphName, NatsUrl, WorkingDir, find_event_source
from nebula_cli.explanation import render_decision
from nebula_cli.quiet_end import quiet_end
from nebula_cli.request_name import is_named
from nebula_cli.split_words import describe_split
from nebula_cli.worker_name import WorkerNames
from nebula_protocol.errors import DecodeError
from nebula_protocol.events import Decision, KvEvent, PicEvent
from nebula_protocol.subjects import Topic

_STANDARD_INPUT = "-"
_TIMEOUT_S = 60.0
_PIPE_COLUMNS = 140
"""Width of the tables where no terminal tells its own."""


Print = Callable[[EventRecord, Decision, WorkerNames], None]


class NothingExplainedError(CliError):
    """No decision was seen that was asked for."""

    exit_code = 1


def explain(
    request: Annotated[
        str | None,
        typer.Argument(help="Only the request whose id or answer's id begins like this.", show_default="the next one"),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many decisions.", show_default="1; all of a file"),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(help="Explain what `nebula events --json` wrote to this file; - for standard input."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Seconds to wait for a decision.", show_default=f"{_TIMEOUT_S:.0f} for one request, else none"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    nats: NatsUrl = None,
    graph: GraphName = None,
    working_dir: WorkingDir = Path(),
) -> None:
    """Explain why the router placed a request as it did, and how the workers' stores are divided.

    Decisions are published when they are made and kept nowhere: without a file, this waits for the next one.
    """
    explainer = Explainer(request or "", _print_json if as_json else _table_printer())
    with quiet_end():
        if file is not None:
            _explain_file(explainer, file, count)
            return
        url, namespaces = find_event_source(nats, graph, working_dir)
        limit_s = _TIMEOUT_S if timeout is None and request is not None else timeout
        asyncio.run(_explain_live(explainer, url, namespaces, count or 1, limit_s))


class Explainer:
    """Explains the decisions that are asked for, and learns workers' names from everything that it is shown."""

    def __init__(self, request: str, print_decision: Print) -> None:
        """
        Args:
            request: beginning of a request id; empty for any.
        """
        self._request = request
        self._print = print_decision
        self._names = WorkerNames()

    @property
    def wanted(self) -> str:
        return f"decision about a request {self._request!r}" if self._request else "decision"

    def show(self, record: EventRecord) -> bool:
        """Whether it was one of those that are asked for."""
        body = record.body
        if isinstance(body, KvEvent | PicEvent) and record.worker is not None:
            self._names.learn(record.worker.worker_id, record.component)
        if not isinstance(body, Decision) or not is_named(body.request_id, self._request):
            return False
        self._print(record, body, self._names)
        return True


async def _explain_live(
    explainer: Explainer, url: str, namespaces: frozenset[str], count: int, limit_s: float | None
) -> None:
    left = count
    try:
        async with asyncio.timeout(limit_s), open_event_feed(url, (Topic.DECISIONS,)) as messages:
            async for subject, data in messages:
                for record in _read_message(subject, data):
                    if (not namespaces or record.namespace in namespaces) and explainer.show(record):
                        left -= 1
                    if not left:
                        return
    except TimeoutError as error:
        raise NothingExplainedError(
            f"no {explainer.wanted} within {limit_s:g} s. A decision is published once, when the request is placed: "
            "to look back, record with `nebula events --json > FILE` and read it with --file FILE"
        ) from error


def _explain_file(explainer: Explainer, name: str, count: int | None) -> None:
    num_explained = 0
    with _open(name) as file:
        for number, line in enumerate(file, start=1):
            record = _read_line(number, line)
            if record is None or not explainer.show(record):
                continue
            num_explained += 1
            if num_explained == count:
                return
    if not num_explained:
        raise NothingExplainedError(f"no {explainer.wanted} in {name}")


def _open(name: str) -> AbstractContextManager[TextIO]:
    """
    Raises:
        CliError: it cannot be read.
    """
    if name == _STANDARD_INPUT:
        return nullcontext(sys.stdin)
    try:
        # Lines that are no text are no events either, and are told as such.
        return Path(name).open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CliError(f"{name} cannot be read: {error.strerror}") from error


def _read_message(subject: str, data: bytes) -> tuple[EventRecord, ...]:
    try:
        return decode_message(subject, data)
    except DecodeError as error:
        print(f"nebula: skipped a message on {subject}: {error}", file=sys.stderr)
        return ()


def _read_line(number: int, line: str) -> EventRecord | None:
    if not line.strip():
        return None
    try:
        return parse_json(line)
    except DecodeError as error:
        print(f"nebula: skipped line {number}: {error}", file=sys.stderr)
        return None


def _print_json(record: EventRecord, decision: Decision, names: WorkerNames) -> None:
    told = {
        **json_fields(record),
        "why": list(explain_choice(decision, names)),
        "split": describe_split(decision.split),
    }
    print(msgspec.json.encode(told).decode(), flush=True)


def _table_printer() -> Print:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS

    def print_decision(record: EventRecord, decision: Decision, names: WorkerNames) -> None:
        console.print(render_decision(decision, record.published_at_ms, names))

    return print_decision
