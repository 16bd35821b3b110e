"""Many assignments become one checked settings model for each service."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from nebula_serve.assignments import Assignment, from_command_line, from_environment, from_graph
from nebula_serve.errors import SettingsError, UnknownKeyError
from nebula_serve.graph import Graph, Replicas, ServiceSpec
from nebula_serve.process_plan import python_module
from nebula_serve.resolve import ResolvedGraph, resolve_common, resolve_services


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    scale: float = Field(default=1.0, gt=0)
    marks: tuple[str, ...] = ()


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = "none"
    namespace: str = "own"
    folder: Path = Path("x")
    mode: Literal["a", "b"] = "a"
    ttl_s: float = Field(default=5.0, gt=0)
    inner: Inner = Inner()
    maybe: Inner | None = None
    links: dict[str, int] = Field(default_factory=dict)


WORKER = ServiceSpec(
    name="Worker",
    description="",
    settings_model=Settings,
    command=python_module("worker"),
    replicas=Replicas(default=2),
    defaults={"mode": "b"},
    inherits={"namespace": "pool_namespace", "name": "model_name", "inner.scale": "time_scale"},
)
GRAPH = Graph(name="g", description="", services=(WORKER,), defaults={"Worker.ttl_s": 3})


def resolve(*flags: str, before: Sequence[Assignment] = ()) -> ResolvedGraph:
    assignments = [*from_graph(GRAPH), *before, *from_command_line(flags, GRAPH.section_names())]
    return resolve_services(GRAPH, resolve_common(GRAPH, assignments), assignments)


def worker(*flags: str, before: Sequence[Assignment] = ()) -> Settings:
    settings = resolve(*flags, before=before).services[0].process_settings()
    assert isinstance(settings, Settings)
    return settings


def test_the_model_s_own_defaults_stand_where_nobody_sets_a_key() -> None:
    assert worker().inner == Inner()


def test_defaults_of_service_and_graph_come_over_those_of_the_model() -> None:
    settings = worker()
    assert (settings.mode, settings.ttl_s) == ("b", 3.0)


def test_a_file_comes_over_the_graph_and_the_environment_over_the_file_and_a_flag_over_all() -> None:
    from_file = [Assignment("Worker", ("ttl_s",), 10, "f"), Assignment("Worker", ("name",), "file", "f")]
    from_env = from_environment({"NEBULA_WORKER__TTL_S": "11", "NEBULA_WORKER__MODE": "a"}, GRAPH.section_names())
    settings = worker("--Worker.ttl_s=12", before=[*from_file, *from_env])
    assert (settings.name, settings.mode, settings.ttl_s) == ("file", "a", 12.0)


def test_a_flag_for_one_nested_key_leaves_its_neighbours_as_the_file_set_them() -> None:
    from_file = [Assignment("Worker", ("inner",), {"scale": 2, "marks": ["#"]}, "f")]
    assert worker("--Worker.inner.scale=4", before=from_file).inner == Inner(scale=4, marks=("#",))


def test_keys_below_a_model_that_may_be_absent_can_be_set() -> None:
    assert worker("--Worker.maybe.scale=2").maybe == Inner(scale=2)
    assert worker("--Worker.maybe.scale=2", "--Worker.maybe=null").maybe is None
    assert worker("--Worker.maybe=null", "--Worker.maybe.scale=2").maybe == Inner(scale=2)


def test_keys_of_a_plain_mapping_are_free() -> None:
    assert worker("--Worker.links.a=1", "--Worker.links.b=2").links == {"a": 1, "b": 2}


def test_a_service_takes_what_it_inherits_from_the_shared_section_unless_somebody_sets_it_there() -> None:
    shared = ("--Common.model_name=m", "--Common.time_scale=2", "--Common.pool_namespace=pool")
    settings = worker(*shared, "--Worker.namespace=mine")
    assert (settings.name, settings.inner.scale, settings.namespace) == ("m", 2.0, "mine")


def test_what_the_shared_section_leaves_open_stays_as_the_service_has_it() -> None:
    assert worker().namespace == "own"


def test_the_number_of_processes_is_a_key_of_the_section_but_not_of_the_process() -> None:
    resolved = resolve("--Worker.workers=7").services[0]
    assert resolved.num_processes == 7
    assert "workers" not in resolved.process_settings().model_dump()


@pytest.mark.parametrize("text", ["123", "yes", "2024-01-01", "1e3", "null"])
def test_a_text_that_looks_like_another_kind_of_value_stays_a_text(text: str) -> None:
    assert worker(f"--Worker.name={text}").name == text


def test_a_folder_named_by_a_number_is_a_path() -> None:
    assert worker("--Worker.folder=2024").folder == Path("2024")


def test_an_unknown_key_names_the_nearest_and_where_it_came_from() -> None:
    with pytest.raises(UnknownKeyError, match=r"Worker\.ttl: no such key; did you mean ttl_s\? \(from --Worker\.ttl\)"):
        resolve("--Worker.ttl=1")


def test_an_unknown_nested_key_is_named_with_its_path() -> None:
    with pytest.raises(UnknownKeyError, match=r"Worker\.inner\.scala: no such key; did you mean scale"):
        resolve("--Worker.inner.scala=1")


def test_an_unknown_nested_key_in_a_file_is_named_with_its_path() -> None:
    with pytest.raises(UnknownKeyError, match=r"Worker\.inner\.scala: .*from a\.yaml"):
        resolve(before=[Assignment("Worker", ("inner",), {"scala": 2}, "a.yaml")])


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--Worker.ttl_s=-1", r"Worker\.ttl_s: should be greater than 0, not -1 \(from --Worker\.ttl_s\)"),
        ("--Worker.mode=c", r"Worker\.mode: should be 'a' or 'b', not 'c'"),
        ("--Worker.inner.scale=x", r"Worker\.inner\.scale: should be a valid number"),
        ("--Worker.inner.marks=x", r"Worker\.inner\.marks: should be a list such as \[a, b\], not 'x'"),
        ("--Worker.workers=0", r"Worker\.workers: should be greater than or equal to 1, not 0"),
        ("--Common.time_scale=0", r"Common\.time_scale: should be greater than 0"),
    ],
)
def test_a_refused_value_is_named_with_reason_value_and_origin(flag: str, line: str) -> None:
    with pytest.raises(SettingsError, match=line) as caught:
        resolve(flag)
    assert "\n" not in str(caught.value)


def test_a_refused_value_that_was_inherited_is_traced_to_the_shared_section() -> None:
    spec = replace(WORKER, defaults={}, inherits={"mode": "model_name"})
    graph = Graph(name="g", description="", services=(spec,))
    assignments = from_command_line(["--Common.model_name=c"], graph.section_names())
    common = resolve_common(graph, assignments)
    with pytest.raises(SettingsError, match=r"Worker\.mode.*Common\.model_name, --Common\.model_name"):
        resolve_services(graph, common, assignments)


def test_several_refused_values_are_counted() -> None:
    with pytest.raises(SettingsError, match="1 more after it"):
        resolve("--Worker.ttl_s=-1", "--Worker.mode=c")
