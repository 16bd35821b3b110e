"""Tables in Markdown."""

from collections.abc import Iterable, Sequence

MISSING = "-"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, num_text_columns: int = 1) -> str:
    """The first columns hold text, the others numbers, which stand to the right."""
    rule = ["-" if column < num_text_columns else "-:" for column in range(len(header))]
    lines = [_line(header), f"|{'|'.join(rule)}|", *map(_line, rows)]
    return "\n".join(lines) + "\n"


def number(value: float | None, digits: int = 0) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
