"""Reads the settings that `dynamo serve` resolved for this process."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from pic_worker.errors import StartError
from pic_worker.settings import WorkerSettings


def load_settings(argv: Sequence[str] | None) -> WorkerSettings:
    """
    Raises:
        StartError: the file is missing or holds a wrong setting.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pic_worker", description="One prefill or decode worker. Normally started by `dynamo serve`."
    )
    parser.add_argument("--config-file", type=Path, required=True, help="JSON with this worker's settings")
    path: Path = parser.parse_args(argv).config_file
    try:
        return WorkerSettings.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise StartError(f"{path}: {error}") from error
