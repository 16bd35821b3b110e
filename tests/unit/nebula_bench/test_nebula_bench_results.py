"""Results files: rows replaced by id, all or nothing."""

from pathlib import Path

import msgspec
import pytest

from nebula_bench.errors import ResultsError
from nebula_bench.results import Bar, Measurement, ResultRow, read_rows, result_rows, update_rows


def row(row_id: str, value: float, bar: Bar | None = None) -> ResultRow:
    measured = Measurement(id=row_id, value=value, unit="ms", bar=bar)
    return result_rows([measured], command="nebula bench", commit="abc1234", machine="2 cores")[0]


def test_a_row_is_put_in_the_place_of_the_one_with_its_id(tmp_path: Path) -> None:
    path = tmp_path / "results" / "serve.json"
    update_rows(path, [row("a", 1.0), row("b", 2.0)])
    update_rows(path, [row("a", 9.0), row("c", 3.0)])
    assert [(one.id, one.value) for one in read_rows(path)] == [("a", 9.0), ("b", 2.0), ("c", 3.0)]


def test_the_file_is_a_list_of_objects_with_the_promised_keys(tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    update_rows(path, [row("a", 2.5, Bar("<=", 3.0))])
    assert msgspec.json.decode(path.read_bytes()) == [
        {
            "id": "a",
            "value": 2.5,
            "unit": "ms",
            "bar": {"op": "<=", "value": 3.0},
            "ok": True,
            "command": "nebula bench",
            "commit": "abc1234",
            "machine": "2 cores",
        }
    ]


def test_nothing_but_the_file_is_left_behind(tmp_path: Path) -> None:
    update_rows(tmp_path / "serve.json", [row("a", 1.0)])
    assert [path.name for path in tmp_path.iterdir()] == ["serve.json"]


@pytest.mark.parametrize(
    ("bar", "value", "ok"),
    [
        (Bar("<=", 3.0), 3.0, True),
        (Bar("<=", 3.0), 3.1, False),
        (Bar(">=", 0.5), 0.4, False),
        (Bar("==", 0.0), 0.0, True),
        (Bar("==", 0.0), 1.0, False),
        (None, 1e9, True),
    ],
)
def test_a_row_is_ok_when_its_bar_is_met(bar: Bar | None, value: float, ok: bool) -> None:
    assert row("a", value, bar).ok is ok


def test_a_file_of_something_else_is_left_alone_and_told(tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    path.write_text('{"not": "rows"}')
    with pytest.raises(ResultsError, match=r"serve\.json"):
        update_rows(path, [row("a", 1.0)])
    assert path.read_text() == '{"not": "rows"}'


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="Not a directory"):
        update_rows(tmp_path / "file" / "serve.json", [row("a", 1.0)])
