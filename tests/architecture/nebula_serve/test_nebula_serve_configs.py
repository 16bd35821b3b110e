"""Graphs and configuration files: all of them resolve, and hold values only."""

import ast
from pathlib import Path

import pytest
import yaml

import graphs
from nebula_serve.assignments import from_config_file, from_graph
from nebula_serve.graph import Graph
from nebula_serve.model_folder import with_engine, with_model
from nebula_serve.resolve import ResolvedGraph, resolve_common, resolve_services
from nebula_serve.schema import list_fields, nested_model, section_model
from nebula_serve.shared_settings import CommonSettings

ROOT = Path(__file__).parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
GRAPHS: dict[str, Graph] = {name: vars(graphs)[name] for name in graphs.__all__}


def graph_of(path: Path) -> Graph:
    """A configuration file is named after its graph: GRAPH-SIZE-ENGINE.yaml."""
    return GRAPHS[path.stem.split("-")[0]]


def resolve(graph: Graph, *files: Path) -> ResolvedGraph:
    assignments = from_graph(graph)
    for path in files:
        assignments += from_config_file(path, graph.section_names())
    common = with_engine(resolve_common(graph, assignments), graph, has_gpu=False)
    return resolve_services(graph, with_model(common, ROOT, may_write=False), assignments)


def num_processes(resolved: ResolvedGraph) -> dict[str, int]:
    return {service.spec.name: service.num_processes for service in resolved.services}


def test_graphs_and_configs_are_found() -> None:
    assert {"nebula", "dynamo_kv"} <= GRAPHS.keys()
    assert {"nebula-7p1d-sim.yaml", "dynamo_kv-7p1d-sim.yaml"} <= {path.name for path in CONFIGS}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=lambda graph: graph.name)
def test_every_graph_resolves_without_a_file(graph: Graph) -> None:
    assert GRAPHS[graph.name] is graph
    assert resolve(graph).services


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_resolves_to_the_size_in_its_name(path: Path) -> None:
    prefill, decode = path.stem.split("-")[1].removesuffix("d").split("p")
    counts = num_processes(resolve(graph_of(path), path))
    assert counts["PrefillWorker"] == int(prefill)
    assert counts["DecodeWorker"] == int(decode)


def test_the_baseline_has_the_same_workers_as_the_graph_it_is_compared_with() -> None:
    ours = resolve(GRAPHS["nebula"], ROOT / "configs" / "nebula-7p1d-sim.yaml")
    baseline = resolve(GRAPHS["dynamo_kv"], ROOT / "configs" / "dynamo_kv-7p1d-sim.yaml")
    for name in ("PrefillWorker", "DecodeWorker"):
        settings = [
            next(service for service in resolved.services if service.spec.name == name).settings.model_dump()
            for resolved in (ours, baseline)
        ]
        # Only where they are registered differs: Dynamo's own router must see them.
        assert [one.pop("namespace") for one in settings] == ["nebula_pool", "nebula"]
        assert settings[0] == settings[1]


def test_workers_are_hidden_from_the_frontend_unless_dynamo_routes_to_them() -> None:
    for name, hidden in (("nebula", True), ("dynamo_kv", False)):
        common = resolve(GRAPHS[name]).common
        assert (common.namespace != common.pool_namespace) is hidden


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=lambda graph: graph.name)
def test_what_a_service_inherits_exists_on_both_sides(graph: Graph) -> None:
    for spec in graph.all_services():
        model = section_model(spec)
        keys = {field.key for field in list_fields(model)} | set(model.model_fields)
        for key, common_key in spec.inherits.items():
            assert key in keys, f"{spec.name}.{key}"
            assert common_key in CommonSettings.model_fields, f"Common.{common_key}"


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=lambda graph: graph.name)
def test_every_setting_of_a_graph_is_documented(graph: Graph) -> None:
    fields = {
        f"{spec.name}.{field.key}": field for spec in graph.all_services() for field in list_fields(section_model(spec))
    }
    assert not [path for path, field in fields.items() if not field.doc]


def test_a_group_of_shared_settings_is_one_model_on_both_sides() -> None:
    for graph in GRAPHS.values():
        for spec in graph.services:
            if "cut" in spec.inherits:
                assert nested_model(spec.settings_model, "cut") is nested_model(CommonSettings, "cut")


@pytest.mark.parametrize("path", sorted((ROOT / "graphs").glob("*.py")), ids=lambda path: path.name)
def test_graph_files_hold_values_and_no_logic(path: Path) -> None:
    body = ast.parse(path.read_text()).body
    assert all(isinstance(node, ast.Expr | ast.Import | ast.ImportFrom | ast.Assign) for node in body)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_files_hold_values_and_no_references(path: Path) -> None:
    tokens = [type(token) for token in yaml.scan(path.read_text())]
    assert yaml.AliasToken not in tokens
