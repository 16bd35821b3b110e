"""Tells `dynamo serve` that this process serves."""

import os
from pathlib import Path

READY_FILE_VARIABLE = "NEBULA_READY_FILE"


def touch_ready_file() -> None:
    """Creates the file that the supervisor waits for; does nothing where no supervisor waits."""
    if path := os.environ.get(READY_FILE_VARIABLE):
        Path(path).touch()
