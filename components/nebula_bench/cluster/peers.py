"""How one worker asks another: a message there, the other's own work, a message back."""

from collections.abc import Generator
from typing import Protocol, TypeVar, cast

import simpy

from nebula_bench.cluster.network import Network
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import FetchReply, FetchRequest, PromptPulled, PullPrompt
from pic_worker.errors import PeerGoneError

ReplyT = TypeVar("ReplyT")
Waiting = Generator[simpy.Event, object, ReplyT]
"""A simulated activity that ends with a value."""


class Peer(Protocol):
    """A worker as its peers see it."""

    def answer_fetch(self, request: FetchRequest) -> Waiting[FetchReply]: ...

    def answer_pull(self, request: PullPrompt) -> Waiting[PromptPulled]: ...


class Peers:
    """The live workers by id."""

    def __init__(self, env: simpy.Environment, network: Network) -> None:
        self._env = env
        self._network = network
        self._live: dict[WorkerId, Peer] = {}

    def join(self, worker_id: WorkerId, peer: Peer) -> None:
        self._live[worker_id] = peer

    def leave(self, worker_id: WorkerId) -> None:
        """Nobody is there any more; questions under way are never answered."""
        self._live.pop(worker_id, None)

    def is_live(self, worker_id: WorkerId, peer: Peer | None) -> bool:
        """Whether the worker is still the process that it was."""
        return peer is not None and self._live.get(worker_id) is peer

    def find(self, worker_id: WorkerId) -> Peer | None:
        return self._live.get(worker_id)

    def fetch(self, worker_id: WorkerId, request: FetchRequest, timeout_s: float) -> Waiting[FetchReply]:
        """
        Raises:
            PeerGoneError: no answer within `timeout_s`.
        """
        peer = yield from self._reach(worker_id)
        return (yield from self._ask(worker_id, peer.answer_fetch(request), timeout_s))

    def pull_prompt(self, worker_id: WorkerId, request: PullPrompt, timeout_s: float) -> Waiting[PromptPulled]:
        """
        Raises:
            PeerGoneError: no answer within `timeout_s`.
        """
        peer = yield from self._reach(worker_id)
        return (yield from self._ask(worker_id, peer.answer_pull(request), timeout_s))

    def _reach(self, worker_id: WorkerId) -> Waiting[Peer]:
        yield self._network.message()
        peer = self._live.get(worker_id)
        if peer is None:
            raise PeerGoneError(worker_id, "nobody is there")
        return peer

    def _ask(self, worker_id: WorkerId, answer: Waiting[ReplyT], timeout_s: float) -> Waiting[ReplyT]:
        answering = self._env.process(answer)
        yield answering | self._env.timeout(timeout_s)
        if not answering.triggered:
            raise PeerGoneError(worker_id, "it does not answer")
        reply = cast("ReplyT", answering.value)
        yield self._network.message()
        return reply
