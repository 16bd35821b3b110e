"""How a long benchmark tells what it is doing."""

from typing import Protocol


class Progress(Protocol):
    def begin(self, title: str, total: int | None = None) -> None:
        """A new step; of `total` parts where that is known."""
        ...

    def advance(self) -> None:
        """One more part of the step is done."""
        ...
