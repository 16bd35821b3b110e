"""Reads the settings that `dynamo serve` resolved for a process."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

SettingsT = TypeVar("SettingsT", bound=BaseModel)


class SettingsFileError(Exception):
    """The file is missing or holds a wrong setting."""


def load_settings(
    settings_type: type[SettingsT], argv: Sequence[str] | None, *, module: str, description: str
) -> SettingsT:
    """The settings in the JSON file that `--config-file` names.

    Raises:
        SettingsFileError: the file is missing or holds a wrong setting.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--config-file", type=Path, required=True, help="JSON with the settings of this process")
    path: Path = parser.parse_args(argv).config_file
    try:
        return settings_type.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise SettingsFileError(f"{path}: {error}") from error
