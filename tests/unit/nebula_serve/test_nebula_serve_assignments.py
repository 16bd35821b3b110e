"""Where settings come from."""

from pathlib import Path

import pytest

from nebula_serve.assignments import (
    Assignment,
    from_command_line,
    from_config_file,
    from_environment,
    from_graph,
    split_overrides,
)
from nebula_serve.errors import ConfigFileError, SettingsError, UnknownServiceError
from nebula_serve.frontend import FrontendSettings, frontend_command
from nebula_serve.graph import Graph, ServiceSpec

SECTIONS = ("Common", "Frontend", "PrefillWorker")


def test_a_flag_with_a_dot_is_a_setting_and_the_rest_are_options() -> None:
    arguments = [
        "serve",
        "graphs:nebula",
        "--Router.ttl_s=5",
        "-f",
        "a.b.yaml",
        "--port",
        "80",
        "--Common.pic",
        "false",
    ]
    overrides, others = split_overrides(arguments)
    assert overrides == ["--Router.ttl_s=5", "--Common.pic=false"]
    assert others == ["serve", "graphs:nebula", "-f", "a.b.yaml", "--port", "80"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("1.5", 1.5), ("true", True), ("null", None), ("[a, b]", ["a", "b"]), ("hello", "hello"), ("", "")],
)
def test_values_of_the_command_line_are_yaml(text: str, value: object) -> None:
    (assignment,) = from_command_line([f"--PrefillWorker.sim.key={text}"], SECTIONS)
    assert assignment == Assignment("PrefillWorker", ("sim", "key"), value, "--PrefillWorker.sim.key", raw_text=text)


def test_text_that_is_no_yaml_is_a_text() -> None:
    (assignment,) = from_command_line(["--Common.model_name=@home"], SECTIONS)
    assert assignment.value == "@home"


def test_a_value_may_hold_equal_signs() -> None:
    (assignment,) = from_command_line(["--Common.model_name=a=b"], SECTIONS)
    assert assignment.value == "a=b"


def test_an_unknown_service_on_the_command_line_names_the_nearest() -> None:
    with pytest.raises(UnknownServiceError, match="did you mean PrefillWorker"):
        from_command_line(["--PrefilWorker.workers=2"], SECTIONS)


@pytest.mark.parametrize("flag", ["--Common.pic", "--Common.=1", "--Common..x=1"])
def test_a_flag_without_key_or_value_is_refused(flag: str) -> None:
    with pytest.raises(SettingsError, match=r"--Service\.key=value"):
        from_command_line([flag], SECTIONS)


@pytest.mark.parametrize("service", ["PREFILLWORKER", "PREFILL_WORKER"])
def test_environment_variables_name_services_in_upper_case_with_or_without_underscores(service: str) -> None:
    name = f"NEBULA_{service}__SIM__TIME_SCALE"
    (assignment,) = from_environment({name: "2", "HOME": "/root"}, SECTIONS)
    assert (assignment.path, assignment.value) == ("PrefillWorker.sim.time_scale", 2)
    assert name in assignment.origin


def test_environment_variables_without_a_double_underscore_are_no_settings() -> None:
    assert from_environment({"NEBULA_READY_FILE": "/x", "NEBULA_SHARED": "y"}, SECTIONS) == []


def test_an_environment_variable_of_an_unknown_service_is_refused() -> None:
    with pytest.raises(UnknownServiceError, match="NEBULA_ROUTER__TTL_S"):
        from_environment({"NEBULA_ROUTER__TTL_S": "1"}, SECTIONS)


def test_a_file_gives_one_assignment_for_each_key_of_each_section(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("Common: {pic: false}\nPrefillWorker:\n  workers: 7\n  sim: {time_scale: 2}\nFrontend:\n")
    values = {assignment.path: assignment.value for assignment in from_config_file(path, SECTIONS)}
    assert values == {"Common.pic": False, "PrefillWorker.workers": 7, "PrefillWorker.sim": {"time_scale": 2}}


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# nothing yet\n")
    assert from_config_file(tmp_path / "a.yaml", SECTIONS) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"Common: {pic: [1\n", "line 2, column 1"),
        (b"- a\n- b\n", "sections"),
        (b"Common: 5\n", "section Common"),
        (b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_a_file_that_is_no_settings_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigFileError, match=reason):
        from_config_file(path, SECTIONS)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=r"absent\.yaml: No such file"):
        from_config_file(tmp_path / "absent.yaml", SECTIONS)


def test_a_section_of_no_service_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("Frontent: {port: 1}\n")
    with pytest.raises(UnknownServiceError, match="did you mean Frontend"):
        from_config_file(tmp_path / "a.yaml", SECTIONS)


def test_the_graph_s_own_values_come_over_those_of_its_services() -> None:
    frontend = ServiceSpec(
        name="Frontend",
        description="",
        settings_model=FrontendSettings,
        command=frontend_command,
        defaults={"port": 1, "migration_limit": 3},
    )
    graph = Graph(name="g", description="", services=(frontend,), defaults={"Frontend.port": 2, "Common.pic": True})
    values = {assignment.path: assignment.value for assignment in from_graph(graph)}
    assert values == {"Frontend.port": 2, "Frontend.migration_limit": 3, "Common.pic": True}
