from pathlib import Path

import msgspec
import pytest

from nebula_serve.sim_model import SPECIAL_TOKENS, ensure_sim_model

FILES = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}


class ModelConfig(msgspec.Struct):
    model_type: str
    vocab_size: int
    max_position_embeddings: int
    eos_token_id: int


def test_the_folder_holds_exactly_the_model_files(tmp_path: Path) -> None:
    folder = ensure_sim_model(tmp_path)
    assert folder == tmp_path / "sim"
    assert {path.name for path in folder.iterdir()} == FILES


def test_the_path_is_absolute_since_the_frontend_takes_others_for_hub_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ensure_sim_model(Path("models")) == tmp_path / "models" / "sim"


def test_a_folder_that_is_right_is_not_written_to(tmp_path: Path) -> None:
    folder = ensure_sim_model(tmp_path)
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    ensure_sim_model(tmp_path)
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == before


def test_missing_and_damaged_files_are_made_good(tmp_path: Path) -> None:
    folder = ensure_sim_model(tmp_path)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "config.json").unlink()
    (folder / "tokenizer.json").write_bytes(whole["tokenizer.json"][:1000])
    ensure_sim_model(tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    note = tmp_path / "sim" / "note.txt"
    note.parent.mkdir()
    note.write_text("mine")
    ensure_sim_model(tmp_path)
    assert note.read_text() == "mine"


def test_a_place_that_is_a_file_is_an_os_error(tmp_path: Path) -> None:
    occupied = tmp_path / "models"
    occupied.write_text("")
    with pytest.raises(NotADirectoryError):
        ensure_sim_model(occupied)


def test_the_configuration_gives_32k_context_and_the_end_of_a_turn(tmp_path: Path) -> None:
    config = msgspec.json.decode((ensure_sim_model(tmp_path) / "config.json").read_bytes(), type=ModelConfig)
    end_of_turn = SPECIAL_TOKENS.index("<|im_end|>")
    assert config == ModelConfig("qwen3", 151_936, 32_768, end_of_turn)
