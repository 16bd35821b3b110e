"""The model's folder, its name and its context, where the settings leave them open."""

from pathlib import Path

import pytest

from nebula_serve.errors import ModelFolderError
from nebula_serve.model_folder import make_model, with_model
from nebula_serve.shared_settings import CommonSettings

SIM = CommonSettings(engine="sim")
VLLM = CommonSettings(engine="vllm")


def make_folder(parent: Path, config: str = "{}", tokenizer: bool = True) -> Path:
    folder = parent / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(config)
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    return folder


def no_report(line: str) -> None:
    raise AssertionError(line)


def test_the_sim_engine_gets_a_model_folder_of_its_own(tmp_path: Path) -> None:
    common = with_model(SIM, tmp_path)
    assert (common.model_name, common.model_path) == ("nebula-sim", str(tmp_path / "models" / "sim"))
    assert common.context_tokens is None
    assert not any(tmp_path.iterdir())
    make_model(common, tmp_path, no_report)
    assert (tmp_path / "models" / "sim" / "tokenizer.json").is_file()


def test_a_real_engine_gets_smollm2_with_the_context_it_has(tmp_path: Path) -> None:
    common = with_model(VLLM, tmp_path)
    assert common.model_name == "SmolLM2-135M-Instruct"
    assert common.model_path == str(tmp_path / "models" / "SmolLM2-135M-Instruct")
    assert common.context_tokens == 8192
    assert not any(tmp_path.iterdir())


def test_a_context_that_was_asked_for_stands(tmp_path: Path) -> None:
    common = CommonSettings(engine="vllm", context_tokens=1024)
    assert with_model(common, tmp_path).context_tokens == 1024


@pytest.mark.parametrize(
    ("config", "context_tokens"),
    [
        ('{"max_position_embeddings": 4096}', 4096),
        # More than a worker takes on by itself.
        ('{"max_position_embeddings": 131072}', 32768),
        ("{}", None),
        ("[]", None),
    ],
)
def test_the_context_of_a_given_model_is_read(tmp_path: Path, config: str, context_tokens: int | None) -> None:
    make_folder(tmp_path, config)
    common = with_model(CommonSettings(engine="vllm", model_path="llama"), tmp_path)
    assert common.context_tokens == context_tokens


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path, "{")
    with pytest.raises(ModelFolderError, match=r"llama: its config\.json cannot be read"):
        with_model(CommonSettings(engine="vllm", model_path="llama"), tmp_path)


@pytest.mark.parametrize("engine", ["sim", "vllm"])
def test_a_given_folder_is_made_absolute_and_gives_the_model_its_name(tmp_path: Path, engine: str) -> None:
    folder = make_folder(tmp_path)
    common = with_model(CommonSettings.model_validate({"engine": engine, "model_path": "llama"}), tmp_path)
    assert (common.model_path, common.model_name) == (str(folder), "llama")
    before = sorted(folder.iterdir())
    make_model(common, tmp_path, no_report)
    assert sorted(folder.iterdir()) == before
    assert not (tmp_path / "models").exists()


def test_a_given_name_stands(tmp_path: Path) -> None:
    make_folder(tmp_path)
    common = CommonSettings(engine="sim", model_path="llama", model_name="mine")
    assert with_model(common, tmp_path).model_name == "mine"


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    make_folder(tmp_path, tokenizer=False)
    with pytest.raises(ModelFolderError, match="no tokenizer"):
        with_model(CommonSettings(engine="sim", model_path="llama"), tmp_path)


def test_a_folder_without_a_configuration_says_so(tmp_path: Path) -> None:
    (make_folder(tmp_path) / "config.json").unlink()
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        with_model(CommonSettings(engine="sim", model_path="llama"), tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="nowhere: no such folder"):
        with_model(CommonSettings(engine="sim", model_path="nowhere"), tmp_path)


@pytest.mark.parametrize("common", [SIM, VLLM], ids=["sim", "vllm"])
def test_a_place_where_no_model_can_be_made_is_named(tmp_path: Path, common: CommonSettings) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(ModelFolderError, match="models"):
        make_model(with_model(common, tmp_path), tmp_path, no_report)
