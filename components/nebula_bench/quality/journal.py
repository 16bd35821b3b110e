"""Outcomes on disk as they come, so that an interrupted run goes on where it was."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from nebula_bench.errors import ResultsError
from nebula_bench.quality.outcome import PromptOutcome


class _Head(msgspec.Struct, frozen=True):
    """First line: what all outcomes of the file have in common."""

    key: str


PromptKey = tuple[int, int]
"""(seed, number among the prompts of the seed)"""


class Journal:
    """A file with one outcome a line. A file with another key is begun anew: it was another measurement."""

    def __init__(self, path: Path, key: str) -> None:
        """
        Raises:
            ResultsError: the file cannot be read or written.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            outcomes = _read(path, key)
            if outcomes is None:
                path.write_bytes(msgspec.json.encode(_Head(key)) + b"\n")
        except OSError as error:
            raise ResultsError(f"{path}: {error.strerror}") from error
        self._outcomes = outcomes or {}

    @property
    def outcomes(self) -> Mapping[PromptKey, PromptOutcome]:
        return self._outcomes

    def append(self, outcome: PromptOutcome) -> None:
        """
        Raises:
            ResultsError: the file cannot be written.
        """
        self._outcomes[outcome.seed, outcome.number] = outcome
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(outcome) + b"\n")
        except OSError as error:
            raise ResultsError(f"{self._path}: {error.strerror}") from error


def _read(path: Path, key: str) -> dict[PromptKey, PromptOutcome] | None:
    """None where there is no file of this key. A last line that was cut off is measured again."""
    if not path.is_file():
        return None
    head, *lines = path.read_bytes().split(b"\n")
    try:
        if msgspec.json.decode(head, type=_Head).key != key:
            return None
    except msgspec.MsgspecError:
        return None
    outcomes = {}
    for line in lines:
        try:
            outcome = msgspec.json.decode(line, type=PromptOutcome)
        except msgspec.MsgspecError:
            break
        outcomes[outcome.seed, outcome.number] = outcome
    if len(outcomes) < len([line for line in lines if line]):
        kept = [head, *(msgspec.json.encode(outcome) for outcome in outcomes.values())]
        path.write_bytes(b"\n".join(kept) + b"\n")
    return outcomes
