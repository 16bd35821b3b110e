"""File discovery forgets killed processes, and nobody else."""

import json
import socket
from pathlib import Path
from urllib.parse import quote

from nebula_serve.discovery import remove_dead


def register(folder: Path, instance_id: str, address: str) -> list[Path]:
    """As Dynamo does for a worker that serves a model."""
    paths = [
        folder / "v1" / kind / quote(f"nebula/decode/generate/{instance_id}", safe="") for kind in ("instances", "mdc")
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"transport": {"tcp": f"{address}/{instance_id}/generate"}}))
    return paths


def test_only_whom_nobody_listens_for_is_forgotten(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as living:
        with socket.create_server(("127.0.0.1", 0)) as dying:
            dead_port = dying.getsockname()[1]
        kept = register(tmp_path, "aa", f"127.0.0.1:{living.getsockname()[1]}")
        gone = register(tmp_path, "bb", f"127.0.0.1:{dead_port}")
        removed = remove_dead(tmp_path)
    assert sorted(removed) == ["nebula/decode/generate/bb"] * 2
    assert [path.exists() for path in (*kept, *gone)] == [True, True, False, False]


def test_what_cannot_be_read_and_an_empty_folder_are_left_alone(tmp_path: Path) -> None:
    assert remove_dead(tmp_path) == ()
    odd = tmp_path / "v1" / "instances" / "odd"
    odd.parent.mkdir(parents=True)
    odd.write_text("no JSON")
    assert remove_dead(tmp_path) == ()
    assert odd.exists()
