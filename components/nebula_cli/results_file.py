"""Numbers of this command into a results file."""

import sys
from collections.abc import Iterable
from pathlib import Path

from nebula_bench.provenance import describe_command, describe_commit, describe_machine
from nebula_bench.results import Measurement, result_rows, update_rows


def write_measurements(path: Path, measurements: Iterable[Measurement]) -> None:
    """Rows with the command as it was typed, and the commit of the code that runs.

    Raises:
        ResultsError: the file cannot be written.
    """
    rows = result_rows(
        measurements,
        command=describe_command("nebula", sys.argv[1:]),
        commit=describe_commit(Path(__file__).parent),
        machine=describe_machine(),
    )
    update_rows(path, rows)
