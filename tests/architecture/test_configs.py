"""Every file in `configs/` resolves: known services and keys, values within their bounds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


def dry_run(config: Path, working_dir: Path) -> subprocess.CompletedProcess[str]:
    """Resolves without the caller's own settings; the file's name begins with its graph's."""
    command = [str(Path(sys.executable).parent / "dynamo"), "serve", f"graphs:{config.stem.split('-')[0]}", "--dry-run"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NEBULA_")}
    arguments = ["-f", str(config), "--working-dir", str(working_dir), "--port", "0"]
    return subprocess.run(command + arguments, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_there_are_configurations_for_both_graphs() -> None:
    assert {config.stem.split("-")[0] for config in CONFIGS} >= {"nebula", "dynamo_kv"}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_a_configuration_resolves(config: Path, tmp_path: Path) -> None:
    done = dry_run(config, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_configuration_with_a_misspelt_key_does_not_resolve(tmp_path: Path) -> None:
    config = tmp_path / "nebula-wrong.yaml"
    config.write_text("Router:\n  ttl_seconds: 5\n")
    done = dry_run(config, tmp_path)
    assert done.returncode == 2
    assert "ttl_seconds" in done.stderr
