"""Reads the settings that `dynamo serve` resolved for this process."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from nebula_router.errors import StartError
from nebula_router.settings import RouterSettings


def load_settings(argv: Sequence[str] | None) -> RouterSettings:
    """
    Raises:
        StartError: the file is missing or holds a wrong setting.
    """
    parser = argparse.ArgumentParser(
        prog="python -m nebula_router", description="Nebula's router. Normally started by `dynamo serve`."
    )
    parser.add_argument("--config-file", type=Path, required=True, help="JSON with the router's settings")
    path: Path = parser.parse_args(argv).config_file
    try:
        return RouterSettings.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise StartError(f"{path}: {error}") from error
