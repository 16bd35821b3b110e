"""What the shared section leaves open is decided from the machine: the engine, the model's folder and name."""

from importlib.util import find_spec
from pathlib import Path

from nebula_serve.errors import EngineError, ModelFolderError
from nebula_serve.graph import Graph
from nebula_serve.shared_settings import CommonSettings
from nebula_serve.sim_model import ensure_sim_model
from nebula_serve.sim_model.model_folder import FOLDER_NAME

SIM_MODEL_NAME = "nebula-sim"
_NEEDED_FILES = ("config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json")


def with_engine(common: CommonSettings, graph: Graph, *, has_gpu: bool) -> CommonSettings:
    """`common` with a concrete engine instead of auto.

    Raises:
        EngineError: the engine asked for does not run in this graph or on this machine.
    """
    return common.model_copy(update={"engine": choose_engine(common.engine, graph, has_gpu=has_gpu)})


def with_model(common: CommonSettings, working_dir: Path, *, may_write: bool = True) -> CommonSettings:
    """`common`, whose engine is concrete, with an absolute model folder and a model name.

    The folder exists, or is made for the `sim` engine when none is given (with `may_write`).

    Raises:
        EngineError: this engine needs a model and none is given.
        ModelFolderError: the folder is missing, holds no model, or cannot be made.
    """
    if common.model_path is None:
        if common.engine != "sim":
            raise EngineError(f"engine {common.engine} needs a model: --Common.model_path=FOLDER")
        models_dir = (working_dir / common.models_dir).absolute()
        folder = _make_sim_model(models_dir) if may_write else models_dir / FOLDER_NAME
        name = common.model_name or SIM_MODEL_NAME
    else:
        folder = (working_dir / common.model_path).absolute()
        check_model_folder(folder)
        name = common.model_name or folder.name
    return common.model_copy(update={"model_path": str(folder), "model_name": name})


def choose_engine(wanted: str, graph: Graph, *, has_gpu: bool) -> str:
    """
    Raises:
        EngineError: the engine asked for does not run in this graph or on this machine.
    """
    if wanted != "auto":
        if wanted not in graph.engines:
            raise EngineError(f"graph {graph.name} has no engine {wanted}; valid: {', '.join(graph.engines)}")
        if wanted == "vllm" and find_spec("vllm") is None:
            raise EngineError("engine vllm is not installed; install the extra `gpu`")
        return wanted
    if "vllm" in graph.engines and has_gpu and find_spec("vllm") is not None:
        return "vllm"
    return "sim"


def check_model_folder(folder: Path) -> None:
    """
    Raises:
        ModelFolderError: it does not exist or holds no tokenizer.
    """
    if not folder.is_dir():
        raise ModelFolderError(str(folder), "no such folder")
    if not (folder / "config.json").is_file():
        raise ModelFolderError(str(folder), "it holds no config.json")
    if not any((folder / name).is_file() for name in _NEEDED_FILES[1:]):
        raise ModelFolderError(str(folder), "it holds no tokenizer")


def machine_has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


def _make_sim_model(models_dir: Path) -> Path:
    try:
        return ensure_sim_model(models_dir)
    except OSError as error:
        raise ModelFolderError(str(models_dir), error.strerror or str(error)) from error
