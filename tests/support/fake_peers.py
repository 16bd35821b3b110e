"""The `Peers` port within one process."""

import asyncio
from typing import Protocol

from nebula_protocol.codec import decode, encode
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import (
    FetchReply,
    FetchRequest,
    PeerAnswer,
    PeerCall,
    PeerReply,
    PeerRequest,
    PromptPulled,
    PullPrompt,
)
from pic_worker.errors import PeerGoneError


class PeerAnswers(Protocol):
    """A worker as its peers see it."""

    async def answer_peer(self, request: PeerRequest) -> PeerReply: ...


class FakePeers:
    """Those who joined answer, each call in a task of its own; calls and answers are encoded as on a wire."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, PeerAnswers] = {}
        self._running: set[asyncio.Task[None]] = set()

    def join(self, worker_id: WorkerId, worker: PeerAnswers) -> None:
        self._workers[worker_id] = worker

    def leave(self, worker_id: WorkerId) -> None:
        """From now on nobody is there; calls under way are never answered."""
        del self._workers[worker_id]

    async def fetch(self, worker_id: WorkerId, request: FetchRequest, timeout_s: float) -> FetchReply:
        reply = await self._ask(worker_id, request, timeout_s)
        if not isinstance(reply, FetchReply):
            raise PeerGoneError(worker_id, "it answered a fetch with something else")
        return reply

    async def pull_prompt(self, worker_id: WorkerId, request: PullPrompt, timeout_s: float) -> PromptPulled:
        reply = await self._ask(worker_id, request, timeout_s)
        if not isinstance(reply, PromptPulled):
            raise PeerGoneError(worker_id, "it answered a pull with something else")
        return reply

    async def _ask(self, worker_id: WorkerId, request: PeerRequest, timeout_s: float) -> PeerReply:
        if worker_id not in self._workers:
            raise PeerGoneError(worker_id, "nobody is there")
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        # A task, since a peer goes on when the caller has given up.
        task = asyncio.create_task(self._answer(worker_id, encode(PeerCall(request=request)), answered))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            async with asyncio.timeout(timeout_s):
                return decode(await answered, PeerAnswer).reply
        except TimeoutError as error:
            raise PeerGoneError(worker_id, "it does not answer") from error

    async def _answer(self, worker_id: WorkerId, call: bytes, answered: "asyncio.Future[bytes]") -> None:
        worker = self._workers[worker_id]
        reply = await worker.answer_peer(decode(call, PeerCall).request)
        if self._workers.get(worker_id) is worker and not answered.done():
            answered.set_result(encode(PeerAnswer(reply=reply)))
