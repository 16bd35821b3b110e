"""Generated parts of a Markdown document; everything around them is written by hand."""

from collections.abc import Mapping
from pathlib import Path

from nebula_bench.errors import ResultsError


def update_document(path: Path, sections: Mapping[str, str]) -> None:
    """Puts each section between the marks `<!-- begin NAME -->` and `<!-- end NAME -->`.

    Raises:
        ResultsError: the file cannot be read or written, or lacks a section's marks.
    """
    try:
        text = path.read_text(encoding="utf-8")
        for name, content in sections.items():
            text = _replace_section(path, text, name, content)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from error


def _replace_section(path: Path, text: str, name: str, content: str) -> str:
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ResultsError(f"{path}: no place for {name!r}; it goes between {begin} and {end}")
    return f"{before}{begin}\n{content.strip()}\n{end}{after}"
