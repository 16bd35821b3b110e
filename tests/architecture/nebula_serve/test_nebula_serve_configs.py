"""Graphs and configuration files: all of them resolve, and hold values only."""

import ast
import re
from pathlib import Path

import pytest
import yaml

import graphs
from nebula_serve.assignments import from_config_file, from_graph
from nebula_serve.engine_choice import choose_engine
from nebula_serve.graph import Graph
from nebula_serve.machine import Machine, VllmBuild
from nebula_serve.model_folder import with_model
from nebula_serve.resolve import ResolvedGraph, resolve_common, resolve_services
from nebula_serve.schema import list_fields, nested_model, section_model
from nebula_serve.shared_settings import CommonSettings
from pic_worker.settings import WorkerSettings

MACHINE = Machine(num_gpus=0, vllm=VllmBuild.FOR_CPU)
ROOT = Path(__file__).parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
GRAPHS: dict[str, Graph] = {name: vars(graphs)[name] for name in graphs.__all__}


def graph_of(path: Path) -> Graph:
    """A configuration file is named after its graph: GRAPH-SIZE-sim.yaml or GRAPH-vllm-HARDWARE.yaml."""
    return GRAPHS[path.stem.split("-")[0]]


def size_of(path: Path) -> tuple[int, int]:
    """Prefill and decode workers by the file's name; the real engine's are all of one size."""
    match = re.search(r"-(\d+)p(\d+)d-", path.stem)
    return (int(match[1]), int(match[2])) if match else (2, 1)


def resolve(graph: Graph, *files: Path, working_dir: Path = ROOT) -> ResolvedGraph:
    assignments = from_graph(graph)
    for path in files:
        assignments += from_config_file(path, graph.section_names())
    common = resolve_common(graph, assignments)
    choice = choose_engine(common.engine, graph, MACHINE)
    common = common.model_copy(update={"engine": choice.engine})
    if common.model_path is not None:
        # A model that the user fetches beforehand.
        folder = working_dir / common.model_path
        folder.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json"):
            (folder / name).write_text("{}")
    return resolve_services(graph, with_model(common, working_dir), assignments)


def num_processes(resolved: ResolvedGraph) -> dict[str, int]:
    return {service.spec.name: service.num_processes for service in resolved.services}


def test_graphs_and_configs_are_found() -> None:
    assert {"nebula", "dynamo_kv"} <= GRAPHS.keys()
    names = {path.name for path in CONFIGS}
    assert {"nebula-7p1d-sim.yaml", "dynamo_kv-7p1d-sim.yaml", "nebula-vllm-cpu.yaml", "nebula-vllm-gpu.yaml"} <= names


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=lambda graph: graph.name)
def test_every_graph_resolves_without_a_file(graph: Graph) -> None:
    assert GRAPHS[graph.name] is graph
    assert resolve(graph).services


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_resolves_to_the_engine_and_size_in_its_name(path: Path, tmp_path: Path) -> None:
    resolved = resolve(graph_of(path), path, working_dir=tmp_path)
    counts = num_processes(resolved)
    assert (counts["PrefillWorker"], counts["DecodeWorker"]) == size_of(path)
    assert resolved.common.engine == ("vllm" if "-vllm-" in path.stem else "sim")


def test_what_a_worker_without_a_gpu_holds_fits_two_cores_and_24_gib() -> None:
    resolved = resolve(GRAPHS["nebula"], ROOT / "configs" / "nebula-vllm-cpu.yaml")
    # SmolLM2: 30 layers, keys and values, 3 heads of 64 numbers, 2 bytes each.
    token_bytes = 30 * 2 * 3 * 64 * 2
    kv_bytes = 0
    for service in resolved.services:
        if isinstance(service.settings, WorkerSettings):
            settings = service.settings
            assert settings.block_size_tokens % settings.vllm.page_tokens == 0
            assert settings.store_capacity_tokens % settings.vllm.page_tokens == 0
            assert settings.device_capacity_tokens % settings.block_size_tokens == 0
            kv_bytes += service.num_processes * token_bytes * (
                settings.device_capacity_tokens + settings.store_capacity_tokens
            )  # fmt: skip
    # Each of the three engines needs about 1.5 GiB beside its KV.
    assert kv_bytes + 3 * 1.5 * 2**30 < 14 * 2**30


def test_prefill_and_decode_workers_agree_on_what_a_transfer_needs() -> None:
    for name in ("nebula-vllm-cpu.yaml", "dynamo_kv-vllm-cpu.yaml", "dynamo_kv-7p1d-sim.yaml", "nebula-7p1d-sim.yaml"):
        resolved = resolve(graph_of(Path(name)), ROOT / "configs" / name)
        workers = [one.settings for one in resolved.services if isinstance(one.settings, WorkerSettings)]
        assert len({(one.vllm.dtype, one.block_size_tokens, one.context_tokens) for one in workers}) == 1


def test_both_graphs_run_either_engine_and_prefer_the_real_one() -> None:
    for graph in GRAPHS.values():
        assert graph.engines == ("vllm", "sim")


@pytest.mark.parametrize("size", ["7p1d-sim", "vllm-cpu"])
def test_the_baseline_has_the_same_workers_as_the_graph_it_is_compared_with(size: str) -> None:
    ours = resolve(GRAPHS["nebula"], ROOT / "configs" / f"nebula-{size}.yaml")
    baseline = resolve(GRAPHS["dynamo_kv"], ROOT / "configs" / f"dynamo_kv-{size}.yaml")
    for name in ("PrefillWorker", "DecodeWorker"):
        settings = [
            next(service for service in resolved.services if service.spec.name == name).settings.model_dump()
            for resolved in (ours, baseline)
        ]
        # Only where they are registered differs: Dynamo's own router must see prefill workers.
        own = "nebula_pool" if name == "PrefillWorker" else "nebula"
        assert [one.pop("namespace") for one in settings] == [own, "nebula"]
        assert [one.pop("pool_namespace") for one in settings] == ["nebula_pool", "nebula"]
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
