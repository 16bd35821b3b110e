"""The engine, the model's folder and its name."""

from pathlib import Path

import pytest

from nebula_serve.errors import EngineError, ModelFolderError
from nebula_serve.graph import Graph
from nebula_serve.model_folder import with_engine, with_model
from nebula_serve.shared_settings import CommonSettings

SIM = CommonSettings(engine="sim")
SIM_GRAPH = Graph(name="g", description="", services=())


def model_folder(parent: Path, *files: str) -> Path:
    folder = parent / "llama"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_graph_with_the_sim_engine_alone_uses_it_on_any_machine(has_gpu: bool) -> None:
    assert with_engine(CommonSettings(), SIM_GRAPH, has_gpu=has_gpu).engine == "sim"


def test_without_a_gpu_every_graph_uses_the_sim_engine() -> None:
    graph = Graph(name="g", description="", services=(), engines=("vllm", "sim"))
    assert with_engine(CommonSettings(), graph, has_gpu=False).engine == "sim"


def test_an_engine_that_the_graph_does_not_have_is_refused() -> None:
    with pytest.raises(EngineError, match="no engine vllm; valid: sim"):
        with_engine(CommonSettings(engine="vllm"), SIM_GRAPH, has_gpu=True)


def test_the_sim_engine_gets_a_model_folder_of_its_own(tmp_path: Path) -> None:
    common = with_model(SIM, tmp_path)
    assert common.model_name == "nebula-sim"
    assert common.model_path == str(tmp_path / "models" / "sim")
    assert (tmp_path / "models" / "sim" / "tokenizer.json").is_file()


def test_a_dry_run_names_that_folder_without_making_it(tmp_path: Path) -> None:
    assert with_model(SIM, tmp_path, may_write=False).model_path == str(tmp_path / "models" / "sim")
    assert not any(tmp_path.iterdir())


def test_a_given_folder_is_made_absolute_and_gives_the_model_its_name(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "config.json", "tokenizer.json")
    common = with_model(CommonSettings(engine="sim", model_path="llama"), tmp_path)
    assert (common.model_path, common.model_name) == (str(folder), "llama")


def test_a_given_name_stands(tmp_path: Path) -> None:
    model_folder(tmp_path, "config.json", "tokenizer.json")
    common = CommonSettings(engine="sim", model_path="llama", model_name="mine")
    assert with_model(common, tmp_path).model_name == "mine"


@pytest.mark.parametrize(
    ("files", "reason"), [(("tokenizer.json",), "no config.json"), (("config.json",), "no tokenizer")]
)
def test_a_folder_without_a_model_says_what_it_lacks(tmp_path: Path, files: tuple[str, ...], reason: str) -> None:
    model_folder(tmp_path, *files)
    with pytest.raises(ModelFolderError, match=reason):
        with_model(CommonSettings(engine="sim", model_path="llama"), tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="nowhere: no such folder"):
        with_model(CommonSettings(engine="sim", model_path="nowhere"), tmp_path)


def test_a_real_engine_needs_a_model(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"--Common\.model_path"):
        with_model(CommonSettings(engine="vllm"), tmp_path)


def test_a_place_where_no_model_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(ModelFolderError, match="models"):
        with_model(SIM, tmp_path)
