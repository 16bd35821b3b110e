"""Which NATS server and which discovery a graph uses."""

from pathlib import Path

import pytest

from nebula_serve.errors import PlanesMissingError
from nebula_serve.listening import loopback_interface
from nebula_serve.nats import NatsSettings
from nebula_serve.planes import join_planes, open_planes
from nebula_serve.run_info import RunInfo

NATS = NatsSettings(port=4333)
FOLDER = Path("/run/discovery")


def running(**environment: str) -> RunInfo:
    return RunInfo(
        graph="g",
        pid=1,
        pid_created_s=0.0,
        working_dir="/w",
        model_name="m",
        nats_url="nats://127.0.0.1:4444",
        namespaces=("nebula",),
        environment=environment,
    )


def test_an_empty_environment_gets_its_own_nats_and_discovery_by_files_all_on_loopback() -> None:
    planes = open_planes({}, NATS, FOLDER)
    assert planes.embedded_nats == NATS
    assert planes.environment == {
        "NATS_SERVER": "nats://127.0.0.1:4333",
        "DYN_EVENT_PLANE": "nats",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": "/run/discovery",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_SYSTEM_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": loopback_interface(),
    }


def test_a_given_nats_server_is_used_and_none_is_started() -> None:
    planes = open_planes({"NATS_SERVER": "nats://elsewhere:4222"}, NATS, FOLDER)
    assert planes.embedded_nats is None
    assert planes.nats_url == planes.environment["NATS_SERVER"] == "nats://elsewhere:4222"


def test_given_etcd_endpoints_are_used_and_nothing_is_bound_to_loopback() -> None:
    planes = open_planes({"ETCD_ENDPOINTS": "http://etcd:2379"}, NATS, FOLDER)
    assert planes.discovery_dir is None
    assert planes.environment["DYN_DISCOVERY_BACKEND"] == "etcd"
    assert planes.environment["ETCD_ENDPOINTS"] == "http://etcd:2379"
    assert not {"DYN_FILE_KV", "DYN_TCP_RPC_HOST"} & planes.environment.keys()


def test_a_named_discovery_backend_decides() -> None:
    environ = {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": "/shared", "ETCD_ENDPOINTS": "http://etcd:2379"}
    assert open_planes(environ, NATS, FOLDER).discovery_dir == Path("/shared")


def test_a_server_bound_to_every_address_is_reached_through_loopback() -> None:
    assert open_planes({}, NatsSettings(host="0.0.0.0", port=1), FOLDER).nats_url == "nats://127.0.0.1:1"


def test_an_address_of_the_user_s_own_for_dynamo_s_request_plane_stands() -> None:
    assert "DYN_TCP_RPC_HOST" not in open_planes({"DYN_TCP_RPC_HOST": "10.0.0.1"}, NATS, FOLDER).environment


def test_a_single_service_joins_the_planes_of_the_running_graph() -> None:
    planes = join_planes({}, running(DYN_FILE_KV="/there", NATS_SERVER="nats://127.0.0.1:4444"), "g")
    assert (planes.nats_url, planes.discovery_dir) == ("nats://127.0.0.1:4444", Path("/there"))
    assert planes.embedded_nats is None


@pytest.mark.parametrize(
    "named",
    [{"ETCD_ENDPOINTS": "http://etcd:2379"}, {"DYN_FILE_KV": "/there"}, {"DYN_DISCOVERY_BACKEND": "kubernetes"}],
)
def test_a_single_service_prefers_the_planes_that_the_environment_names(named: dict[str, str]) -> None:
    planes = join_planes({"NATS_SERVER": "nats://elsewhere:4222", **named}, running(), "g")
    assert planes.nats_url == "nats://elsewhere:4222"


def test_a_single_service_without_a_running_graph_is_refused() -> None:
    with pytest.raises(PlanesMissingError, match="start `dynamo serve` of g"):
        join_planes({"NATS_SERVER": "nats://elsewhere:4222"}, None, "g")
