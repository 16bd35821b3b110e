"""Lines of a foreign file, decoded one by one."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from nebula_bench.errors import TraceError
from nebula_bench.line_file import numbered_lines

RecordT = TypeVar("RecordT", bound=msgspec.Struct)


def read_records(path: Path, record: type[RecordT], *, strict: bool = True) -> Iterator[tuple[int, RecordT]]:
    """Records with the numbers of their lines; blank lines are skipped.

    Args:
        strict: False takes numbers that are written as text.

    Raises:
        TraceError: the file cannot be read, or a line is no such record; names the line and the field.
    """
    decoder = msgspec.json.Decoder(record, strict=strict)
    for number, line in numbered_lines(path):
        if line.isspace():
            continue
        try:
            yield number, decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TraceError(str(path), str(error), number) from error
