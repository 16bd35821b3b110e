"""Short names of workers."""

import pytest

from nebula_cli.worker_name import WorkerNames, matches, short_id
from nebula_protocol.ids import DpRank, WorkerId, WorkerWithDpRank

WORKER = WorkerId(0x1E9B579EE39D8707)


def test_a_short_name_is_the_end_of_the_id_in_hexadecimal() -> None:
    assert short_id(WORKER) == "9d8707"
    assert short_id(WorkerId(77)) == "00004d"


def test_a_worker_has_its_components_name_once_an_event_told_it() -> None:
    names = WorkerNames()
    assert names.name(WorkerWithDpRank(WORKER)) == "9d8707"
    names.learn(WORKER, "prefill")
    assert names.name(WorkerWithDpRank(WORKER)) == "prefill/9d8707"
    assert names.name(WorkerWithDpRank(WORKER, DpRank(2))) == "prefill/9d8707:2"


@pytest.mark.parametrize("text", [str(int(WORKER)), "9d8707", "9D8707", "0x9d8707", "prefill/9d8707", "9d8707:2", "07"])
def test_what_the_lines_show_finds_the_worker(text: str) -> None:
    assert matches(WORKER, text)


def test_a_small_worker_is_found_by_its_padded_name() -> None:
    assert matches(WorkerId(77), short_id(WorkerId(77)))


@pytest.mark.parametrize("text", ["", "prefill/", "9d8708", "1e9b"])
def test_something_else_does_not(text: str) -> None:
    assert not matches(WORKER, text)
