"""Positions of a request cut into runs that follow one another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TokenRuns:
    """Runs [begin, end) of positions; int64 on the host."""

    begins: torch.Tensor
    ends: torch.Tensor

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def lengths(self) -> torch.Tensor:
        return self.ends - self.begins

    @property
    def positions(self) -> torch.Tensor:
        """Of all runs in their order."""
        return positions_of(list(zip(self.begins.tolist(), self.ends.tolist(), strict=True)))

    def short_first(self, max_length: int) -> "TokenRuns":
        """Those of up to `max_length` before the others; each group keeps its order."""
        order = (self.lengths > max_length).sort(stable=True).indices
        return TokenRuns(self.begins[order], self.ends[order])


def runs_of(positions: torch.Tensor) -> TokenRuns:
    """The fewest runs that cover ascending `positions`, at least one of them; ascending too."""
    last = torch.nonzero(positions[1:] != positions[:-1] + 1).flatten()
    first = torch.cat([torch.zeros(1, dtype=torch.int64), last + 1])
    last = torch.cat([last, torch.tensor([len(positions) - 1])])
    return TokenRuns(positions[first], positions[last] + 1)


def positions_of(runs: Sequence[tuple[int, int]]) -> torch.Tensor:
    """All positions of runs [a, b)."""
    return torch.cat([torch.empty(0, dtype=torch.int64), *(torch.arange(a, b) for a, b in runs)])


def split_positions(positions: torch.Tensor, *, max_tokens: int, max_runs: int) -> Iterator[torch.Tensor]:
    """Ascending pieces with at most so many tokens and runs each, as few as greedy cutting gives."""
    rest = positions
    while len(rest) > 0:
        piece = rest[:max_tokens]
        runs = runs_of(piece)
        if len(runs) > max_runs:
            piece = piece[: int(runs.lengths[:max_runs].sum())]
        yield piece
        rest = rest[len(piece) :]
