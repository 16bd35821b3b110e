"""Finding a graph by MODULE:NAME."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nebula_serve.errors import GraphNotFoundError
from nebula_serve.graph_reference import load_graph

OWN_GRAPH = """
from nebula_serve.graph import Graph
mine = Graph(name="mine", description="", services=())
"""


@pytest.fixture(autouse=True)
def import_state() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in ("own_graphs", "broken_graphs"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("reference", "name"),
    [("graphs:nebula", "nebula"), ("graphs:dynamo_kv", "dynamo_kv"), ("graphs.nebula:GRAPH", "nebula")],
)
def test_this_project_s_graphs_are_found(reference: str, name: str) -> None:
    assert load_graph(reference).name == name


def test_a_graph_of_the_user_s_own_is_found_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "own_graphs.py").write_text(OWN_GRAPH)
    assert load_graph("own_graphs:mine", (tmp_path,)).name == "mine"


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("nebula", "MODULE:NAME"),
        ("graphs:", "MODULE:NAME"),
        (":nebula", "MODULE:NAME"),
        ("graphs:nebla", "did you mean nebula"),
        ("graphs:__doc__", "no graph __doc__"),
        ("grphs:nebula", "did you mean graphs"),
        ("graphs.absent:GRAPH", "no module graphs.absent"),
    ],
)
def test_a_wrong_reference_says_what_is_wrong(reference: str, reason: str) -> None:
    with pytest.raises(GraphNotFoundError, match=reason):
        load_graph(reference)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import not_installed_anywhere", "needs the module not_installed_anywhere"),
        ("1/0", "cannot be imported: ZeroDivisionError"),
        ("def", "cannot be imported: SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(tmp_path: Path, source: str, reason: str) -> None:
    (tmp_path / "broken_graphs.py").write_text(source)
    with pytest.raises(GraphNotFoundError, match=reason):
        load_graph("broken_graphs:mine", (tmp_path,))
