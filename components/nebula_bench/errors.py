"""What can be wrong with the inputs of a benchmark. Each error is one line for the person at the terminal."""


class BenchError(Exception):
    """Base of this package's errors."""


class TraceError(BenchError):
    """A trace file cannot be read, or a line of it is not a request."""

    def __init__(self, path: str, reason: str, line: int | None = None) -> None:
        place = path if line is None else f"{path}, line {line}"
        super().__init__(f"{place}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class FrontendError(BenchError):
    """The frontend cannot be reached, or does not serve what a benchmark needs."""


class ResultsError(BenchError):
    """A results file cannot be read or written."""


class SceneError(BenchError):
    """A scene of the decision benchmark with such numbers cannot be made."""


class CellError(BenchError):
    """A cell of the virtual cluster with such settings cannot be run."""
