"""What turns the data plane on, and what it needs then."""

from pathlib import Path

import pytest

from nebula_protocol.data_plane import DataPlaneKind
from pic_worker.adapters.data_plane import read_secret
from pic_worker.adapters.mapped_pages import MappedPages
from pic_worker.core.arena_ids import Page
from pic_worker.data_plane_settings import DataPlaneSettings
from pic_worker.errors import StartError


def test_without_a_secret_it_is_off() -> None:
    assert DataPlaneSettings().kind is None


def test_with_a_secret_it_is_tcp_unless_it_is_said_otherwise() -> None:
    assert DataPlaneSettings(secret_file="secret").kind is DataPlaneKind.TCP
    assert DataPlaneSettings(secret_file="secret", transport="nixl").kind is DataPlaneKind.NIXL
    assert DataPlaneSettings(secret_file="secret", transport="off").kind is None


def test_a_secret_that_is_missing_or_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(StartError, match="secret"):
        read_secret(path)
    path.write_bytes(b"0123456789abcde\n")
    with pytest.raises(StartError, match="15 bytes"):
        read_secret(path)
    path.write_bytes(b"0123456789abcdef\n")
    assert read_secret(path) == b"0123456789abcdef"


def test_memory_of_ranks_that_differ_or_is_not_there_is_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "0", tmp_path / "1"
    first.write_bytes(bytes(4096))
    second.write_bytes(bytes(8192))
    for paths in ((str(first), str(second)), (str(tmp_path / "2"),)):
        with pytest.raises(StartError):
            MappedPages(paths, 1024)
    with pytest.raises(StartError):
        MappedPages((str(first),), 1000)


def test_pages_are_found_where_they_lie_and_none_beyond(tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(b"a" * 1024 + b"b" * 1024 + b"c" * 2048)
    memory = MappedPages((str(path),), 1024)
    assert (memory.num_pages, memory.num_ranks) == (4, 1)
    assert bytes(memory.view(0, Page(1), 2)) == b"b" * 1024 + b"c" * 1024
    for first, num_pages in ((-1, 1), (4, 1), (3, 2), (0, 0)):
        with pytest.raises(IndexError):
            memory.view(0, Page(first), num_pages)
    memory.close()
