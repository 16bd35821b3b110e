"""From resolved settings to the exact processes."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from nebula_serve.frontend import FrontendSettings, frontend_command
from nebula_serve.gpu_shares import GpuShares
from nebula_serve.graph import Graph, ReadyKind, Replicas, ServiceSpec
from nebula_serve.nats import NATS, nats_command
from nebula_serve.planes import Planes
from nebula_serve.process_plan import ProcessSpec, frontend_url, plan_processes, python_module
from nebula_serve.readiness import ModelListedProbe, NatsGreetingProbe, ReadyFileProbe
from nebula_serve.resolve import ResolvedGraph, ResolvedService
from nebula_serve.run_directory import RunDirectory, write_secret
from nebula_serve.schema import section_model
from nebula_serve.shared_settings import CommonSettings


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    ttl_s: float = 5.0
    metrics_port: int = 0


WORKER = ServiceSpec(
    name="Worker",
    description="",
    settings_model=Settings,
    command=python_module("some.worker"),
    replicas=Replicas(),
    metrics_port_key="metrics_port",
)
FRONTEND = ServiceSpec(
    name="Frontend",
    description="",
    settings_model=FrontendSettings,
    command=frontend_command,
    ready=ReadyKind.MODEL_LISTED,
)
COMMON = CommonSettings(model_name="m")
DIRECTORY = RunDirectory(Path("/run/g"))
PLANES = Planes("nats://h:1", None, None, {"NATS_SERVER": "nats://h:1"})


def resolved(spec: ServiceSpec, num_processes: int = 1, **values: object) -> ResolvedService:
    return ResolvedService(spec, section_model(spec).model_validate(values), num_processes)


def plan(
    service: ResolvedService, common: CommonSettings = COMMON, environ: Mapping[str, str] | None = None
) -> tuple[ProcessSpec, ...]:
    return plan_processes(service, common, PLANES, DIRECTORY, environ or {})


def test_replicas_are_numbered_and_each_has_its_own_files_and_metrics_port() -> None:
    first, second = plan(resolved(WORKER, 2, ttl_s=7, workers=2))
    assert (first.name, second.name) == ("Worker-0", "Worker-1")
    assert second.argv == (sys.executable, "-m", "some.worker", "--config-file", "/run/g/config/Worker-1.json")
    assert second.environment["NEBULA_READY_FILE"] == "/run/g/ready/Worker-1"
    assert second.probe == ReadyFileProbe(Path("/run/g/ready/Worker-1"))
    settings = [json.loads(process.config_json) for process in (first, second)]
    assert [one["ttl_s"] for one in settings] == [7.0, 7.0]
    ports = [one["metrics_port"] for one in settings]
    # Dynamo takes no number above 32767 for it.
    assert all(0 < port < 2**15 for port in ports)
    assert ports[0] != ports[1]
    assert second.environment["DYN_SYSTEM_PORT"] == str(ports[1])
    assert second.metrics_url == f"http://127.0.0.1:{ports[1]}/metrics"


def test_a_configured_metrics_port_is_that_of_the_first_replica_and_the_others_count_on() -> None:
    ports = [json.loads(one.config_json)["metrics_port"] for one in plan(resolved(WORKER, 3, metrics_port=9100))]
    assert ports == [9100, 9101, 9102]


def test_every_process_finds_the_planes_and_is_told_its_name() -> None:
    (process,) = plan(resolved(WORKER))
    assert process.environment["NATS_SERVER"] == "nats://h:1"
    assert process.environment["NEBULA_PROCESS_NAME"] == "Worker-0"


def test_a_service_without_replicas_is_one_process_of_its_own_name() -> None:
    (process,) = plan(resolved(FRONTEND))
    assert process.name == "Frontend"


@pytest.mark.parametrize(
    ("level", "dynamo_filter"),
    [("debug", "debug"), ("warning", "warn"), ("error", "error")],
)
def test_dynamo_logs_at_the_level_of_the_graph(level: str, dynamo_filter: str) -> None:
    common = CommonSettings.model_validate({"log_level": level})
    assert plan(resolved(WORKER), common)[0].environment["DYN_LOG"] == dynamo_filter


def test_at_info_dynamo_writes_no_line_for_each_request() -> None:
    level, *filters = plan(resolved(WORKER))[0].environment["DYN_LOG"].split(",")
    assert level == "info"
    assert "dynamo_llm::http::service=warn" in filters


def test_a_log_filter_of_the_user_s_own_stands() -> None:
    assert "DYN_LOG" not in plan(resolved(WORKER), environ={"DYN_LOG": "trace"})[0].environment


def test_json_logs_are_asked_of_every_process() -> None:
    environment = plan(resolved(WORKER), CommonSettings(log_format="json"))[0].environment
    assert (environment["DYN_LOGGING_JSONL"], environment["NEBULA_LOG_FORMAT"]) == ("1", "json")


class Engine(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    ranks: int = 1
    colour: str = "red"


class GpuSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    engine: Engine = Engine()


GPU_WORKER = replace(
    WORKER, settings_model=GpuSettings, metrics_port_key=None, gpus_key="engine.ranks", replicas=Replicas()
)


def shown_gpus(service: ResolvedService, engine: str, gpus: GpuShares) -> list[str | None]:
    common = CommonSettings.model_validate({"engine": engine})
    processes = plan_processes(service, common, PLANES, DIRECTORY, {}, gpus)
    return [process.environment.get("CUDA_VISIBLE_DEVICES") for process in processes]


def test_each_real_worker_sees_gpus_of_its_own() -> None:
    gpus = GpuShares("0123")
    assert shown_gpus(resolved(GPU_WORKER, 2), "vllm", gpus) == ["0", "1"]
    assert shown_gpus(resolved(GPU_WORKER, 1, engine={"ranks": 2}), "vllm", gpus) == ["2,3"]


def test_what_needs_no_gpu_takes_none() -> None:
    gpus = GpuShares("0")
    assert shown_gpus(resolved(GPU_WORKER, 2), "sim", gpus) == [None, None]
    assert shown_gpus(resolved(replace(GPU_WORKER, gpus_key=None), 2), "vllm", gpus) == [None, None]


def test_a_key_that_holds_no_number_of_gpus_is_a_fault_of_the_graph() -> None:
    with pytest.raises(TypeError, match=r"Worker\.engine\.colour holds no number"):
        shown_gpus(resolved(replace(GPU_WORKER, gpus_key="engine.colour")), "vllm", GpuShares("0"))


class Plane(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    transport: str = "auto"
    secret_file: str = ""


class PlaneSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    plane: Plane = Plane()


PLANE_WORKER = replace(
    WORKER, settings_model=PlaneSettings, metrics_port_key=None, replicas=Replicas(), secret_section="plane"
)


def planes_of(service: ResolvedService, secret_file: Path | None) -> list[object]:
    processes = plan_processes(service, CommonSettings(), PLANES, DIRECTORY, {}, secret_file=secret_file)
    return [json.loads(process.config_json)["plane"] for process in processes]


def test_the_processes_of_a_run_share_its_secret_unless_they_have_one() -> None:
    of_the_run = {"transport": "tcp", "secret_file": "/run/secret"}
    assert planes_of(resolved(PLANE_WORKER, 2, plane={"transport": "tcp"}), Path("/run/secret")) == [of_the_run] * 2
    own = {"transport": "auto", "secret_file": "/own"}
    assert planes_of(resolved(PLANE_WORKER, 1, plane={"secret_file": "/own"}), Path("/run/secret")) == [own]
    assert planes_of(resolved(PLANE_WORKER, 1), None) == [{"transport": "auto", "secret_file": ""}]


def test_a_run_s_secret_is_fresh_and_for_its_user_alone(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        directory = RunDirectory(tmp_path / name)
        directory.make()
        write_secret(directory)
        assert directory.secret_file.stat().st_mode & 0o777 == 0o600
        found.append(directory.secret_file.read_bytes())
    assert found[0] != found[1]
    assert min(map(len, found)) >= 32


def test_the_frontend_gets_dynamo_s_flags() -> None:
    settings = FrontendSettings(port=81, router_mode="kv", block_size_tokens=16, extra_args=("--router-ttl-secs", "9"))
    argv = frontend_command(settings, Path("unused"))
    assert argv[:3] == (sys.executable, "-m", "dynamo.frontend")
    flags = dict(zip(argv[3::2], argv[4::2], strict=True))
    assert flags == {
        "--http-host": "127.0.0.1",
        "--http-port": "81",
        "--namespace": "nebula",
        "--router-mode": "kv",
        "--migration-limit": "3",
        "--kv-cache-block-size": "16",
        "--router-ttl-secs": "9",
    }


def test_the_frontend_is_ready_when_it_lists_the_model_at_the_address_that_clients_use() -> None:
    service = resolved(FRONTEND, host="0.0.0.0", port=81)
    assert plan(service)[0].probe == ModelListedProbe("http://127.0.0.1:81", "m")
    graph = Graph(name="g", description="", services=(FRONTEND,))
    assert frontend_url(ResolvedGraph(graph, COMMON, (service,))) == "http://127.0.0.1:81"


def test_nats_is_ready_when_it_greets() -> None:
    (process,) = plan(resolved(NATS, port=4333))
    assert process.probe == NatsGreetingProbe("127.0.0.1", 4333)
    assert process.argv[1:] == ("--addr", "127.0.0.1", "--port", "4333")


def test_a_command_refuses_the_settings_of_another_service() -> None:
    with pytest.raises(TypeError):
        frontend_command(Settings(), Path())
    with pytest.raises(TypeError):
        nats_command(FrontendSettings(), Path())
    with pytest.raises(TypeError):
        plan(resolved(replace(WORKER, ready=ReadyKind.MODEL_LISTED)))
