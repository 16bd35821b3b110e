"""One log of many processes: each line names its process, in a colour of its service's own on a terminal."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal, TextIO, assert_never

from nebula_serve.supervision_events import (
    EngineChosen,
    ModelBeingMade,
    ProcessCrashed,
    ProcessKilled,
    ProcessReady,
    ProcessStarted,
    ProcessStopped,
    RunInfoNotWritten,
    StillWaiting,
    Stopping,
    SupervisionEvent,
)

SUPERVISOR = "serve"
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_BOLD = 1
_ANSI_SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")
_REQUEST_DONE = "route request completed"
_DONE_WELL = re.compile(r"request\.outcome\W+success\b")
_CAMEL_BORDER = re.compile(r"(?<!^)(?=[A-Z])")


class Console:
    """Writes whole lines and flushes each, so that a reader never sees half of one.

    Args:
        services: in a fixed order, which gives each its colour.
        width: of the longest process name.
        log_format: console for prefixed lines; json for one JSON object a line.
        shows_requests: whether to show the lines that Dynamo 1.6 logs for every request that went well.
    """

    def __init__(
        self,
        stream: TextIO,
        services: Sequence[str],
        width: int,
        log_format: Literal["console", "json"] = "console",
        *,
        shows_requests: bool = False,
    ) -> None:
        self._stream = stream
        self._width = max(width, len(SUPERVISOR))
        self._is_json = log_format == "json"
        self._has_colour = stream.isatty() and not self._is_json
        self._colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(services)}
        self._shows_requests = shows_requests
        self._is_open = True

    @property
    def has_colour(self) -> bool:
        return self._has_colour

    def process_line(self, process: str, service: str, line: str) -> None:
        if not self._shows_requests and _is_request_done(line):
            return
        if self._is_json:
            self._write(_json_line(process, line))
        else:
            self._write(self._prefix(process, self._colours.get(service, _BOLD)) + self._plain(line))

    def report(self, event: SupervisionEvent) -> None:
        if self._is_json:
            name = _CAMEL_BORDER.sub("_", type(event).__name__).lower()
            self._write(json.dumps({"process": SUPERVISOR, "event": name, "data": asdict(event)}))
        else:
            self._write(self._prefix(SUPERVISOR, _BOLD) + _sentence(event))

    def say(self, text: str) -> None:
        """Text for people, unprefixed; left out of a JSON log, whose every line must be an object."""
        if not self._is_json:
            self._write(text)

    def _prefix(self, process: str, colour: int) -> str:
        padded = f"{process:<{self._width}} |"
        return f"\x1b[{colour}m{padded}\x1b[0m " if self._has_colour else f"{padded} "

    def _plain(self, line: str) -> str:
        return line if self._has_colour else _ANSI_SEQUENCE.sub("", line)

    def _write(self, line: str) -> None:
        if not self._is_open:
            return
        try:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except BrokenPipeError:
            # The reader of the log left, as `dynamo serve ... | head` does; serving goes on without one.
            self._is_open = False


def _is_request_done(line: str) -> bool:
    """Dynamo 1.6 logs these at level info whatever its filter says. One that tells of trouble is no such line."""
    return _REQUEST_DONE in line and _DONE_WELL.search(_ANSI_SEQUENCE.sub("", line)) is not None


def _json_line(process: str, line: str) -> str:
    """The line with its process in it: merged into a JSON object, wrapped where it is other text."""
    try:
        record: object = json.loads(line)
    except ValueError:
        record = None
    fields = record if isinstance(record, dict) else {"message": line}
    return json.dumps({"process": process, **fields}, ensure_ascii=False)


def _sentence(event: SupervisionEvent) -> str:
    match event:
        case EngineChosen(engine, reason, model):
            return f"engine {engine} ({reason}), model {model}"
        case ModelBeingMade(step):
            return step
        case ProcessStarted(process, pid):
            return f"{process} started, pid {pid}"
        case ProcessReady(process, start_s):
            return f"{process} ready after {start_s:.1f} s"
        case ProcessCrashed(process, outcome, restart_in_s):
            return f"{process} {outcome}; restart in {restart_in_s:g} s"
        case ProcessStopped(process, outcome):
            return f"{process} stopped: {outcome}"
        case ProcessKilled(process, after_s):
            return f"{process} did not stop within {after_s:.0f} s: killed"
        case StillWaiting(processes, waited_s):
            return f"waiting for {', '.join(processes)} since {waited_s:.0f} s"
        case Stopping(reason):
            return f"{reason}: stopping all processes"
        case RunInfoNotWritten(path, reason):
            return f"{path} cannot be written: {reason}"
        case _:
            assert_never(event)
