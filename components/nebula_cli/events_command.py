"""`nebula events`: what happens to KV in a deployment, as it happens."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nebula_cli.errors import CliError
from nebula_cli.event_feed import open_event_feed
from nebula_cli.event_filter import EventFilter
from nebula_cli.event_json import format_json
from nebula_cli.event_line import format_line
from nebula_cli.event_record import EventRecord, decode_message
from nebula_cli.event_source import GraphName, NatsUrl, WorkingDir, find_event_source
from nebula_cli.quiet_end import quiet_end
from nebula_cli.worker_name import WorkerNames
from nebula_protocol.errors import DecodeError
from nebula_protocol.events import KvEvent, PicEvent
from nebula_protocol.subjects import Topic

Print = Callable[[EventRecord], None]


def events(
    topic: Annotated[
        list[Topic] | None, typer.Option(help="Only this topic; may be given several times.", show_default="all")
    ] = None,
    worker: Annotated[
        str | None, typer.Option(help="Only events about this worker: its id, or the end of it as the lines show it.")
    ] = None,
    request: Annotated[
        str | None, typer.Option(help="Only decisions about requests whose id begins like this.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many events.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C; the default.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    nats: NatsUrl = None,
    graph: GraphName = None,
    working_dir: WorkingDir = Path(),
) -> None:
    """Print the events of a deployment: KV stored and removed by its workers, and the router's decisions.

    Events of the past are not kept anywhere: what is printed is what happens from now on.
    """
    if follow and count is not None:
        raise CliError("--follow and --count exclude each other")
    wanted = EventFilter(frozenset(topic or ()), worker, request)
    if not wanted.wanted_topics():
        raise CliError(f"only {Topic.DECISIONS} name a request: --request and --topic exclude each other here")
    url, namespaces = find_event_source(nats, graph, working_dir)
    wanted = replace(wanted, namespaces=namespaces)
    with quiet_end():
        asyncio.run(_print_events(url, wanted, count, _print_json if as_json else _line_printer()))


async def _print_events(url: str, wanted: EventFilter, count: int | None, print_event: Print) -> None:
    left = count
    async with open_event_feed(url, wanted.wanted_topics()) as messages:
        async for subject, data in messages:
            try:
                records = decode_message(subject, data)
            except DecodeError as error:
                print(f"nebula: skipped a message on {subject}: {error}", file=sys.stderr)
                continue
            for record in filter(wanted.lets_pass, records):
                print_event(record)
                left = None if left is None else left - 1
                if left == 0:
                    return


def _print_json(record: EventRecord) -> None:
    print(format_json(record), flush=True)


def _line_printer() -> Print:
    console = Console(highlight=False)
    names = WorkerNames()

    def print_line(record: EventRecord) -> None:
        if isinstance(record.body, KvEvent | PicEvent) and record.worker is not None:
            names.learn(record.worker.worker_id, record.component)
        line = format_line(record, names)
        if console.is_terminal:
            console.print(line, soft_wrap=True)
        else:
            print(line.plain.rstrip(), flush=True)

    return print_line
