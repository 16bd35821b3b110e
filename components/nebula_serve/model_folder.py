"""The model's folder and name where the shared section leaves them open, and the folder itself where it can be made."""

import json
from collections.abc import Callable
from pathlib import Path

from nebula_serve.errors import ModelFolderError
from nebula_serve.shared_settings import CommonSettings
from nebula_serve.sim_model import ensure_sim_model
from nebula_serve.sim_model.model_folder import FOLDER_NAME as SIM_FOLDER_NAME
from nebula_serve.smollm2 import FOLDER_NAME as SMOLLM2_FOLDER_NAME
from nebula_serve.smollm2 import ensure_smollm2

SIM_MODEL_NAME = "nebula-sim"
SMOLLM2_CONTEXT_TOKENS = 8192
_MAX_CONTEXT_TOKENS = 32_768
"""What a worker takes on by itself; more is a setting."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")

Report = Callable[[str], None]


def with_model(common: CommonSettings, working_dir: Path) -> CommonSettings:
    """`common`, whose engine is concrete, with an absolute model folder, a model name and a context that it has.

    Without a model of the user's the folder is that of SmolLM2, or of the `sim` engine's own; it may not be there yet.
    Nothing is written.

    Raises:
        ModelFolderError: the folder given is missing or holds no model.
    """
    if common.model_path is None:
        folder = _default_folder(common, working_dir)
        name = common.model_name or (SIM_MODEL_NAME if common.engine == "sim" else folder.name)
        model_context_tokens: int | None = SMOLLM2_CONTEXT_TOKENS
    else:
        folder = (working_dir / common.model_path).absolute()
        check_model_folder(folder)
        name = common.model_name or folder.name
        model_context_tokens = read_context_tokens(folder)
    update: dict[str, object] = {"model_path": str(folder), "model_name": name}
    if common.engine == "vllm" and common.context_tokens is None and model_context_tokens is not None:
        # The simulated engine takes any length; a real one refuses more than its model was trained for.
        update["context_tokens"] = min(model_context_tokens, _MAX_CONTEXT_TOKENS)
    return common.model_copy(update=update)


def make_model(common: CommonSettings, working_dir: Path, report: Report) -> None:
    """Makes the folder that `with_model` named, unless it is one of the user's own or there already.

    Raises:
        ModelSourceError: the weights cannot be had.
        ModelFolderError: the folder cannot be written.
    """
    folder = _default_folder(common, working_dir)
    if common.model_path != str(folder):
        return
    try:
        if common.engine == "sim":
            ensure_sim_model(folder.parent)
        else:
            ensure_smollm2(folder.parent, report)
    except OSError as error:
        raise ModelFolderError(str(folder.parent), error.strerror or str(error)) from error


def check_model_folder(folder: Path) -> None:
    """
    Raises:
        ModelFolderError: it does not exist or holds no tokenizer.
    """
    if not folder.is_dir():
        raise ModelFolderError(str(folder), "no such folder")
    if not (folder / "config.json").is_file():
        raise ModelFolderError(str(folder), "it holds no config.json")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelFolderError(str(folder), "it holds no tokenizer")


def read_context_tokens(folder: Path) -> int | None:
    """The longest context that the model's configuration names, or None where it names none.

    Raises:
        ModelFolderError: the configuration cannot be read.
    """
    try:
        config: object = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFolderError(str(folder), f"its config.json cannot be read: {error}") from error
    longest: object = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return longest if isinstance(longest, int) else None


def _default_folder(common: CommonSettings, working_dir: Path) -> Path:
    name = SIM_FOLDER_NAME if common.engine == "sim" else SMOLLM2_FOLDER_NAME
    return (working_dir / common.models_dir).absolute() / name
