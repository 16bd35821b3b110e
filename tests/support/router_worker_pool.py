"""The router's `WorkerPool`, with workers that do as the test says."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum

from nebula_protocol.ids import WorkerId
from nebula_router.errors import WorkerGoneError, WorkerRefusedError
from nebula_router.ports import JsonObject, Origin

WholeReply = Callable[[WorkerId, Mapping[str, object]], list[JsonObject]]


class Ending(Enum):
    WHOLE = "whole"
    GONE = "gone"
    REFUSED = "refused"
    SILENT = "silent"
    """Nothing comes any more, and the stream stays open."""


@dataclass(frozen=True, slots=True)
class Script:
    """One reply: so many chunks of the whole one (None: all), and how it ends then."""

    ending: Ending = Ending.WHOLE
    num_chunks: int | None = None
    reason: str = "as the test says"


DIES_AT_ONCE = Script(Ending.GONE, 0)
DIES_AFTER_A_CHUNK = Script(Ending.GONE, 1)
HANGS_AT_ONCE = Script(Ending.SILENT, 0)
HANGS_AFTER_A_CHUNK = Script(Ending.SILENT, 1)


def refuses(reason: str) -> Script:
    return Script(Ending.REFUSED, 0, reason)


class Outcome(Enum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    """The caller closed or cancelled it."""


@dataclass(slots=True)
class Call:
    """A request that a worker got."""

    worker_id: WorkerId
    request: Mapping[str, object]
    origin: Origin = None
    id_suffix: str = ""
    outcome: Outcome = Outcome.RUNNING


class FakeWorkerPool:
    """`WorkerPool`. Workers give their whole reply unless a script comes first; each script serves one call."""

    def __init__(self, reply: WholeReply, *worker_ids: int) -> None:
        self.reply = reply
        self.calls: list[Call] = []
        self._live = set(map(WorkerId, worker_ids))
        self._dead: set[WorkerId] = set()
        self._scripts: defaultdict[WorkerId, deque[Script]] = defaultdict(deque)

    def script(self, worker_id: int, *scripts: Script) -> None:
        self._scripts[WorkerId(worker_id)].extend(scripts)

    def join(self, worker_id: int) -> None:
        self._live.add(WorkerId(worker_id))

    def leave(self, worker_id: int) -> None:
        """Discovery lists it no more."""
        self._live.remove(WorkerId(worker_id))

    def die(self, worker_id: int) -> None:
        """Every call fails from now on, though discovery lists it still."""
        self._dead.add(WorkerId(worker_id))

    def calls_of(self, worker_id: int) -> list[Call]:
        return [call for call in self.calls if call.worker_id == worker_id]

    def live_workers(self) -> frozenset[WorkerId]:
        return frozenset(self._live)

    async def generate(
        self, worker_id: WorkerId, request: Mapping[str, object], origin: Origin = None, id_suffix: str = ""
    ) -> AsyncGenerator[JsonObject, None]:
        call = Call(worker_id, request, origin, id_suffix)
        self.calls.append(call)
        try:
            async with aclosing(self._play(worker_id, request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            call.outcome = Outcome.DONE
        except (WorkerGoneError, WorkerRefusedError):
            call.outcome = Outcome.FAILED
            raise
        finally:
            if call.outcome is Outcome.RUNNING:
                call.outcome = Outcome.STOPPED

    async def _play(self, worker_id: WorkerId, request: Mapping[str, object]) -> AsyncGenerator[JsonObject, None]:
        # A real one is never there at once.
        await asyncio.sleep(0)
        if worker_id in self._dead or worker_id not in self._live:
            raise WorkerGoneError(worker_id, "nobody is there")
        scripts = self._scripts[worker_id]
        script = scripts.popleft() if scripts else Script()
        for chunk in self.reply(worker_id, request)[: script.num_chunks] if script.num_chunks != 0 else ():
            yield chunk
            await asyncio.sleep(0)
        match script.ending:
            case Ending.GONE:
                raise WorkerGoneError(worker_id, script.reason)
            case Ending.REFUSED:
                raise WorkerRefusedError(worker_id, script.reason)
            case Ending.SILENT:
                await asyncio.get_running_loop().create_future()
            case Ending.WHOLE:
                pass
