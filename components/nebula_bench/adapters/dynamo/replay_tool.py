"""Dynamo's replay in virtual time, `python -m dynamo.replay`, which 1.4 brings and 1.6 has moved to another package."""

import sys
from importlib.util import find_spec
from pathlib import Path

from nebula_bench.errors import CellError

MISSING = "Dynamo's replay needs ai-dynamo 1.4.2, as `make test-dynamo-1.4` installs it in .venv-dynamo-1.4"


def replay_command() -> tuple[str, ...]:
    """How a process starts it, without arguments.

    Raises:
        CellError: this environment's Dynamo does not bring it.
    """
    if not has_replay():
        raise CellError(MISSING)
    return (sys.executable, "-m", "dynamo.replay")


def has_replay() -> bool:
    """Looks at files alone: from 1.6 on the package is there, but cannot be imported or run."""
    package = find_spec("dynamo.replay")
    folders = () if package is None else package.submodule_search_locations or ()
    return any((Path(folder) / "__main__.py").is_file() for folder in folders)
