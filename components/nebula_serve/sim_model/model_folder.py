"""The model folder that Dynamo's frontend reads when the workers run the `sim` engine."""

import os
import tempfile
from importlib.resources import files
from pathlib import Path

FOLDER_NAME = "sim"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""In the order of their ids, which start at 0."""


def packaged_folder() -> Path:
    """The folder inside the package that holds the model's files."""
    return Path(str(files("nebula_serve.sim_model") / "data"))


def ensure_sim_model(models_dir: Path) -> Path:
    """Makes `models_dir/sim` hold the packaged model files and returns its absolute path.

    Files that are missing or differ are replaced, each in one step, so a process that reads the folder
    meanwhile never sees half a file; a folder that is right already is not written to. Files of other
    names are left alone.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = (models_dir / FOLDER_NAME).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for source in sorted(packaged_folder().glob("*.json")):
        content = source.read_bytes()
        target = folder / source.name
        if not _holds(target, content):
            _replace_file(target, content)
    return folder


def _holds(target: Path, content: bytes) -> bool:
    try:
        return target.read_bytes() == content
    except FileNotFoundError:
        return False


def _replace_file(target: Path, content: bytes) -> None:
    # The temporary file lies in the same folder: a rename is only atomic within one file system.
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.chmod(0o644)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
