"""Limits of size and naming that keep one noun in a file and one step in a function."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
NAMES_OF_NOTHING = frozenset({"common", "helper", "helpers", "manager", "misc", "util", "utils"})
CHECKS_OF_OTHERS = frozenset({"test_vllm_", "test_sglang_", "test_trtllm_"})
"""Test files so named are silently dropped by pytest plugins of Dynamo's wheel where the engine is missing."""


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


SOURCES = python_files("components", "graphs", "requirements")
TESTS = python_files("tests")


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def num_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_sources_and_tests_are_found() -> None:
    packages = {name_of(path).split("/")[1] for path in SOURCES}
    assert {"nebula_protocol", "nebula_router", "pic_worker", "nebula_serve", "nebula_bench", "nebula_cli"} <= packages
    assert Path(__file__) in TESTS


def test_every_file_is_short() -> None:
    lines = {name_of(path): len(path.read_text().splitlines()) for path in SOURCES + TESTS}
    assert not {name: num for name, num in lines.items() if num >= MAX_FILE_LINES}


def test_every_function_is_short() -> None:
    lines = {(name_of(path), node.name): num_lines(node) for path in SOURCES + TESTS for node in functions(path)}
    assert not {place: num for place, num in lines.items() if num >= MAX_FUNCTION_LINES}


def test_no_source_asserts_anything_since_optimised_python_drops_assertions() -> None:
    nodes = ((path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text())))
    assert not [(name_of(path), node.lineno) for path, node in nodes if isinstance(node, ast.Assert)]


def test_no_file_or_folder_is_named_after_nothing() -> None:
    found = {name_of(path) for path in SOURCES + TESTS if NAMES_OF_NOTHING & {path.stem, *path.parent.parts}}
    assert not found


def test_every_test_file_has_a_name_that_pytest_collects_and_no_other_test_file_has() -> None:
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert len(names) == len(set(names))
    assert not [name for name in names if name.startswith(tuple(CHECKS_OF_OTHERS))]
