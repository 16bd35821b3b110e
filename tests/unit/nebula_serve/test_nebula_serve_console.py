"""One log of many processes."""

import io
import json
from typing import Literal

import pytest

from nebula_serve.console import Console
from nebula_serve.supervision_events import (
    EngineChosen,
    ModelBeingMade,
    ProcessCrashed,
    ProcessReady,
    describe_exit,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def console(stream: io.StringIO, log_format: Literal["console", "json"] = "console") -> Console:
    return Console(stream, ["Router", "Worker"], width=len("Worker-10"), log_format=log_format)


def test_a_line_names_its_process_in_a_column() -> None:
    out = io.StringIO()
    console(out).process_line("Router", "Router", "hello")
    console(out).process_line("Worker-10", "Worker", "world")
    assert out.getvalue() == "Router    | hello\nWorker-10 | world\n"


def test_colours_of_a_process_are_dropped_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    console(out).process_line("Router", "Router", "\x1b[32mINFO\x1b[0m ready")
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_all_processes_of_a_service_have_its_colour_and_services_differ() -> None:
    out = Terminal()
    shown = console(out)
    shown.process_line("Worker-0", "Worker", "x")
    shown.process_line("Worker-1", "Worker", "x")
    shown.process_line("Router", "Router", "x")
    first, second, other = (line.split("m", 1)[0] for line in out.getvalue().splitlines())
    assert first == second != other


def test_in_a_json_log_the_process_is_added_to_an_object() -> None:
    out = io.StringIO()
    console(out, "json").process_line("Router", "Router", '{"event": "x", "n": 1}')
    assert json.loads(out.getvalue()) == {"process": "Router", "event": "x", "n": 1}


def test_in_a_json_log_other_lines_become_objects() -> None:
    out = io.StringIO()
    shown = console(out, "json")
    shown.process_line("Nats", "Nats", "[1] started")
    shown.report(ProcessReady("Nats", 0.5))
    shown.say("for people only")
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"process": "Nats", "message": "[1] started"},
        {"process": "serve", "event": "process_ready", "data": {"process": "Nats", "start_s": 0.5}},
    ]


def test_the_engine_is_told_with_the_reason_for_it_and_the_model_while_it_is_made() -> None:
    out = io.StringIO()
    console(out).report(EngineChosen("sim", "vLLM is not installed", "nebula-sim"))
    console(out).report(ModelBeingMade("downloading"))
    assert out.getvalue().splitlines() == [
        "serve     | engine sim (vLLM is not installed), model nebula-sim",
        "serve     | downloading",
    ]


def test_a_crash_is_told_with_its_reason_and_the_delay() -> None:
    out = io.StringIO()
    console(out).report(ProcessCrashed("Worker-0", describe_exit(-9), 0.5))
    assert out.getvalue() == "serve     | Worker-0 was ended by SIGKILL; restart in 0.5 s\n"


def test_exit_codes_and_unknown_signals_are_told_too() -> None:
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(-200) == "was ended by signal 200"


def test_a_reader_that_left_does_not_end_the_service() -> None:
    shown = console(ClosedPipe())
    shown.process_line("Router", "Router", "x")
    shown.report(ProcessReady("Router", 0.5))


DONE = 'INFO client_request: request_span: route request completed request.outcome="success" operation="direct"'
DONE_JSON = '{"level":"INFO","target":"request_span","message":"route request completed","request.outcome":"success"}'


@pytest.mark.parametrize("line", [DONE, DONE_JSON, f"\x1b[32mINFO\x1b[0m {DONE}"])
def test_requests_that_went_well_are_shown_only_where_they_are_asked_for(line: str) -> None:
    quiet, loud = io.StringIO(), io.StringIO()
    console(quiet).process_line("Router", "Router", line)
    Console(loud, ["Router"], 6, shows_requests=True).process_line("Router", "Router", line)
    assert quiet.getvalue() == ""
    assert "route request completed" in loud.getvalue()


def test_a_request_that_ended_badly_is_shown() -> None:
    out = io.StringIO()
    console(out).process_line("Router", "Router", DONE.replace("success", "error"))
    assert 'request.outcome="error"' in out.getvalue()
