"""The file that says where a running graph is."""

import io
import os
import stat
from pathlib import Path

import pytest

from nebula_serve.console import Console
from nebula_serve.errors import AlreadyRunningError, WorkingDirectoryError
from nebula_serve.graph import Graph
from nebula_serve.planes import Planes
from nebula_serve.resolve import ResolvedGraph
from nebula_serve.run_directory import RunDirectory, graph_run_directory, locked, opened
from nebula_serve.run_info import (
    ProcessInfo,
    RunInfo,
    find_running_graphs,
    own_pid_created_s,
    read_run_info,
    run_info_path,
    write_run_info,
)
from nebula_serve.run_record import RunRecord
from nebula_serve.shared_settings import CommonSettings


def info(graph: str = "g", pid: int | None = None, created_s: float | None = None) -> RunInfo:
    return RunInfo(
        graph=graph,
        pid=os.getpid() if pid is None else pid,
        pid_created_s=own_pid_created_s() if created_s is None else created_s,
        working_dir="/w",
        url="http://127.0.0.1:8000",
        model_name="m",
        nats_url="nats://user:secret@h:1",
        namespaces=("nebula", "nebula_pool"),
        environment={"NATS_SERVER": "nats://h:1"},
        processes=(ProcessInfo(name="Worker-0", service="Worker", pid=1),),
    )


def write(working_dir: Path, record: RunInfo) -> Path:
    path = run_info_path(working_dir, record.graph)
    path.parent.mkdir(exist_ok=True)
    write_run_info(path, record)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_run_info(write(tmp_path, info())) == info()


def test_only_the_owner_can_read_it_for_the_url_may_hold_a_password(tmp_path: Path) -> None:
    assert stat.S_IMODE(write(tmp_path, info()).stat().st_mode) == 0o600


def test_a_graph_whose_process_is_gone_is_not_running(tmp_path: Path) -> None:
    # The largest pid that Linux can give is 2**22.
    assert read_run_info(write(tmp_path, info(pid=2**22 + 1))) is None


def test_a_later_process_with_the_same_pid_is_another_one(tmp_path: Path) -> None:
    assert read_run_info(write(tmp_path, info(created_s=own_pid_created_s() - 60))) is None


def test_a_missing_or_broken_file_is_no_running_graph(tmp_path: Path) -> None:
    assert read_run_info(tmp_path / "absent.json") is None
    (tmp_path / "broken.json").write_text("{")
    assert read_run_info(tmp_path / "broken.json") is None


def test_running_graphs_are_found_by_their_working_directory(tmp_path: Path) -> None:
    assert find_running_graphs(tmp_path) == ()
    write(tmp_path, info("b"))
    write(tmp_path, info("a"))
    write(tmp_path, info("gone", created_s=0.0))
    assert [running.graph for running in find_running_graphs(tmp_path)] == ["a", "b"]


def test_a_second_run_of_a_graph_is_refused_and_told_where_the_first_is(tmp_path: Path) -> None:
    with locked(tmp_path, "g"):
        write(tmp_path, info())
        with (
            pytest.raises(AlreadyRunningError, match=rf"pid {os.getpid()}, http://127.0.0.1:8000"),
            locked(tmp_path, "g"),
        ):
            pass
        with locked(tmp_path, "other"):
            pass


def test_after_the_first_run_the_graph_can_run_again(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path, "g"):
            pass


def test_a_run_directory_is_fresh_and_goes_at_the_end(tmp_path: Path) -> None:
    directory = graph_run_directory(tmp_path, "g")
    directory.make()
    directory.ready_file("Worker-0").touch()
    with opened(directory, tmp_path):
        assert not directory.ready_file("Worker-0").exists()
        assert directory.discovery_dir.is_dir()
        assert directory.config_file("Worker-0").parent.is_dir()
    assert not directory.path.exists()


def test_a_place_where_no_folder_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(WorkingDirectoryError, match=str(tmp_path)), locked(tmp_path, "g"):
        pass
    with pytest.raises(WorkingDirectoryError), opened(RunDirectory(tmp_path / "run" / "g"), tmp_path):
        pass


def test_a_record_that_cannot_be_written_is_told_and_stops_nothing(tmp_path: Path) -> None:
    out = io.StringIO()
    resolved = ResolvedGraph(Graph(name="g", description="", services=()), CommonSettings(model_name="m"), ())
    planes = Planes("nats://h:1", None, None, {})
    path = tmp_path / "absent" / "g.json"
    RunRecord(path, resolved, planes, None, tmp_path, Console(out, [], width=5)).update(())
    assert out.getvalue() == f"serve | {path} cannot be written: No such file or directory\n"
