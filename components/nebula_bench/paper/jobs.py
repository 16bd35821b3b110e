"""Runs jobs over several processes, and remembers what the same commit has computed before."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from pydantic import BaseModel

from nebula_bench.errors import ResultsError

JobT = TypeVar("JobT", bound=BaseModel)
ResultT = TypeVar("ResultT")


class _Line(msgspec.Struct, frozen=True):
    key: str
    result: msgspec.Raw


class Jobs(Generic[JobT, ResultT]):
    """Results by settings. One line of a file for each, so that an interrupted table can go on."""

    def __init__(
        self,
        compute: Callable[[JobT], ResultT],
        result_type: type[ResultT],
        *,
        num_processes: int,
        commit: str,
        memory: Path | None,
    ) -> None:
        """
        Args:
            compute: a function of a module, since it runs in other processes.
            commit: of the code; another one's results are not used.
            memory: file of earlier results; None to compute everything.

        Raises:
            ResultsError: the file is there and holds something else.
        """
        self._compute = compute
        self._num_processes = num_processes
        self._commit = commit
        self._memory = memory
        self._known = {} if memory is None else _read(memory, result_type)

    def run(self, jobs: Sequence[JobT], on_finished: Callable[[JobT], None] = lambda _: None) -> list[ResultT]:
        """Results in the order of `jobs`. The longest should come first, so that no process is left alone at the end.

        Raises:
            BenchError: a job cannot be done, or its result cannot be written.
        """
        missing: dict[str, JobT] = {}
        for job in jobs:
            key = self._key(job)
            if key in self._known:
                on_finished(job)
            else:
                missing[key] = job
        for key, result in self._run_missing(missing):
            self._known[key] = result
            self._remember(key, result)
            on_finished(missing[key])
        return [self._known[self._key(job)] for job in jobs]

    def _run_missing(self, missing: dict[str, JobT]) -> Iterable[tuple[str, ResultT]]:
        if self._num_processes == 1 or len(missing) <= 1:
            for key, job in missing.items():
                yield key, self._compute(job)
            return
        with ProcessPoolExecutor(self._num_processes) as pool:
            futures = {pool.submit(self._compute, job): key for key, job in missing.items()}
            for future in as_completed(futures):
                yield futures[future], future.result()

    def _key(self, job: JobT) -> str:
        text = f"{self._commit}\n{type(job).__name__}\n{job.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _remember(self, key: str, result: ResultT) -> None:
        if self._memory is None:
            return
        line = msgspec.json.encode(_Line(key, msgspec.Raw(msgspec.json.encode(result))))
        try:
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            with self._memory.open("ab") as file:
                file.write(line + b"\n")
        except OSError as error:
            raise ResultsError(f"{self._memory}: {error.strerror}") from error


def _read(memory: Path, result_type: type[ResultT]) -> dict[str, ResultT]:
    try:
        lines = msgspec.json.Decoder(_Line).decode_lines(memory.read_bytes())
        return {line.key: msgspec.json.decode(line.result, type=result_type) for line in lines}
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise ResultsError(f"{memory}: {error}") from error
