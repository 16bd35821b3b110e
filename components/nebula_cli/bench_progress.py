"""What a long benchmark is doing, on the error stream."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class BenchProgress:
    """A bar for each step on a terminal, a line for each step elsewhere. Use it as a context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        # Drawn seldom, for it shares the cores with what is measured.
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            refresh_per_second=4,
            disable=not self._console.is_terminal,
        )
        self._total: int | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, title: str, total: int | None = None) -> None:
        self._finish_last()
        self._total = total
        self._bars.add_task(title, total=total)
        if not self._console.is_terminal:
            self._console.print(title if total is None else f"{title}, {total}", highlight=False)

    def advance(self) -> None:
        if self._bars.task_ids:
            self._bars.advance(self._bars.task_ids[-1])

    def _finish_last(self) -> None:
        """A step without a known total is over when the next one begins."""
        if self._bars.task_ids and self._total is None:
            self._bars.update(self._bars.task_ids[-1], total=1, completed=1)
