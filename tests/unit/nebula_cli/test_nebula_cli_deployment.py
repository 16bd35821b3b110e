"""Which running graph a command talks to."""

import os
from pathlib import Path

import pytest

from nebula_cli.deployment import find_deployment
from nebula_cli.errors import CliError
from nebula_serve.run_info import RunInfo, own_pid_created_s, run_info_path, write_run_info


def let_run(working_dir: Path, graph: str) -> None:
    """As if this process were the supervisor of `graph`."""
    path = run_info_path(working_dir, graph)
    path.parent.mkdir(exist_ok=True)
    info = RunInfo(
        graph=graph,
        pid=os.getpid(),
        pid_created_s=own_pid_created_s(),
        working_dir=str(working_dir),
        url=f"http://{graph}",
        model_name="demo",
        nats_url="nats://127.0.0.1:1",
        namespaces=("nebula",),
        environment={},
    )
    write_run_info(path, info)


def test_where_nothing_runs_nothing_is_found(tmp_path: Path) -> None:
    assert find_deployment(tmp_path) is None


def test_the_only_graph_that_runs_is_taken(tmp_path: Path) -> None:
    let_run(tmp_path, "nebula")
    found = find_deployment(tmp_path)
    assert found is not None
    assert found.url == "http://nebula"


def test_of_several_one_must_be_named(tmp_path: Path) -> None:
    let_run(tmp_path, "nebula")
    let_run(tmp_path, "dynamo_kv")
    with pytest.raises(CliError, match=r"several graphs run here \(dynamo_kv, nebula\)"):
        find_deployment(tmp_path)
    found = find_deployment(tmp_path, "dynamo_kv")
    assert found is not None
    assert found.graph == "dynamo_kv"


def test_a_named_graph_must_run(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="'nebula' does not run"):
        find_deployment(tmp_path, "nebula")
