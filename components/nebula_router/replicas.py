"""Several routers in front of the same workers: each tells the others what it has dispatched and learned.

Workers' events reach every router by themselves. What the others cannot know is the speculative half, so that is what
these records carry; a router applies them with the code that records its own deeds. They pass between routers only.
"""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import structlog

from nebula_protocol.ids import DomainId, RequestId, WorkerId, WorkerWithDpRank
from nebula_protocol.layout import PromptLayout, Segment
from nebula_protocol.receipt import Receipt
from nebula_router.core.plan_answer import PlanAnswer
from nebula_router.decide import Recorded, RouterState
from nebula_router.ports import Clock

log = structlog.get_logger()

_MAX_DISPATCHES = 65_536
"""Of other routers, that are remembered until their receipt; the oldest goes first."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A router has started: the others tell it what they have in flight."""

    router_id: WorkerId


class Dispatched(msgspec.Struct, frozen=True, kw_only=True, tag="dispatched"):
    router_id: WorkerId
    now_s: float
    """The sender's clock; the answer's times count on it."""
    answer: PlanAnswer
    block_hashes: bytes
    """uint64, little-endian."""
    block_size_tokens: int
    num_tokens: int
    segments: tuple[Segment, ...]
    domain_id: DomainId
    unknown_segments: tuple[int, ...]
    best_prefix_tokens: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    router_id: WorkerId
    request_id: RequestId
    receipt: Receipt | None
    """None: the target will not deliver."""


class HelperEnded(msgspec.Struct, frozen=True, kw_only=True, tag="helper_ended"):
    router_id: WorkerId
    request_id: RequestId
    worker: WorkerWithDpRank
    is_done: bool


Record = Hello | Dispatched | Ended | HelperEnded
_ENCODER = msgspec.msgpack.Encoder(enc_hook=lambda value: value.item())
"""Plans hold numbers of numpy."""
_DECODER = msgspec.msgpack.Decoder(Record)


class Replicas:
    """What this router and its peers tell each other. Used from one event loop only."""

    def __init__(
        self,
        own_id: WorkerId,
        *,
        state: RouterState,
        live_routers: Callable[[], frozenset[WorkerId]],
        send: Callable[[bytes], None],
        clock: Clock,
    ) -> None:
        """
        Args:
            live_routers: Those that discovery lists, this one with them or not.
            send: Gives a record to the others; never waits.
        """
        self._own_id = own_id
        self._state = state
        self._live_routers = live_routers
        self._send = send
        self._clock = clock
        self._own: dict[RequestId, Recorded] = {}
        self._others: dict[RequestId, tuple[WorkerId, Recorded]] = {}

    def steers(self) -> bool:
        """Whether this router is the one that divides the workers' stores: the lowest live id."""
        return min(self._live_routers() | {self._own_id}) == self._own_id

    # ---- own deeds ----

    def say_hello(self) -> None:
        self._send(_ENCODER.encode(Hello(self._own_id)))

    def tell_dispatch(self, recorded: Recorded) -> None:
        self._own[recorded.plan.request_id] = recorded
        if self._has_peers():
            self._send(_ENCODER.encode(self._dispatched(recorded)))

    def tell_end(self, recorded: Recorded, receipt: Receipt | None) -> None:
        request_id = recorded.plan.request_id
        if self._own.get(request_id) is recorded:
            del self._own[request_id]
        if self._has_peers():
            self._send(_ENCODER.encode(Ended(router_id=self._own_id, request_id=request_id, receipt=receipt)))

    def tell_helper_end(self, request_id: RequestId, worker: WorkerWithDpRank, *, is_done: bool) -> None:
        if self._has_peers():
            record = HelperEnded(router_id=self._own_id, request_id=request_id, worker=worker, is_done=is_done)
            self._send(_ENCODER.encode(record))

    def _has_peers(self) -> bool:
        return bool(self._live_routers() - {self._own_id})

    def _dispatched(self, recorded: Recorded) -> Dispatched:
        layout = recorded.layout
        return Dispatched(
            router_id=self._own_id,
            now_s=self._clock(),
            answer=replace(recorded.answer, candidates=()),
            block_hashes=np.ascontiguousarray(layout.block_hashes, dtype="<u8").tobytes(),
            block_size_tokens=layout.block_size_tokens,
            num_tokens=layout.num_tokens,
            segments=layout.segments,
            domain_id=recorded.domain_id,
            unknown_segments=tuple(sorted(recorded.unknown_segments)),
            best_prefix_tokens=recorded.best_prefix_tokens,
        )

    # ---- others' deeds ----

    def take(self, data: bytes) -> None:
        """Applies a record of another router; one that cannot be read is logged."""
        try:
            record = _DECODER.decode(data)
        except msgspec.MsgspecError as error:
            log.warning("router_record_unreadable", error=str(error))
            return
        if record.router_id == self._own_id:
            return
        match record:
            case Hello():
                for recorded in self._own.values():
                    self._send(_ENCODER.encode(self._dispatched(recorded)))
            case Dispatched():
                self._take_dispatch(record)
            case Ended():
                self._take_end(record)
            case HelperEnded():
                self._take_helper_end(record)

    def forget_departed(self) -> None:
        """What routers that left had in flight will not be told of any more."""
        live = self._live_routers()
        departed = [request_id for request_id, (router_id, _) in self._others.items() if router_id not in live]
        for request_id in departed:
            self._give_up(request_id)

    def _take_dispatch(self, record: Dispatched) -> None:
        request_id = record.answer.plan.request_id
        known = self._others.get(request_id)
        if known is not None and known[1].plan == record.answer.plan:
            # Told again, for a router that has started since.
            return
        recorded = _recorded(record, self._clock() - record.now_s)
        self._state.record_dispatch(recorded, self._clock())
        self._others[request_id] = (record.router_id, recorded)
        if len(self._others) > _MAX_DISPATCHES:
            self._give_up(next(iter(self._others)))

    def _take_end(self, record: Ended) -> None:
        known = self._others.pop(record.request_id, None)
        if known is None:
            return
        if record.receipt is None:
            self._state.record_failure(known[1], self._clock())
        else:
            self._state.record_receipt(known[1], record.receipt, self._clock())

    def _take_helper_end(self, record: HelperEnded) -> None:
        now_s = self._clock()
        if record.is_done:
            self._state.record_helper_done(record.request_id, record.worker, now_s)
        else:
            self._state.record_helper_failure(record.request_id, record.worker, now_s)

    def _give_up(self, request_id: RequestId) -> None:
        _, recorded = self._others.pop(request_id)
        self._state.record_failure(recorded, self._clock())
        for helper in recorded.answer.helpers:
            self._state.record_helper_failure(request_id, helper.worker, self._clock())


def _recorded(record: Dispatched, shift_s: float) -> Recorded:
    """As this router would have recorded it, in times of its own clock."""
    answer = record.answer
    return Recorded(
        answer=replace(
            answer,
            runnable_at_s=answer.runnable_at_s + shift_s,
            copied_at_s=answer.copied_at_s + shift_s,
            completion_at_s=answer.completion_at_s + shift_s,
            helpers=tuple(replace(helper, ready_at_s=helper.ready_at_s + shift_s) for helper in answer.helpers),
        ),
        layout=PromptLayout(
            # Only their number counts: nothing is cut again.
            tokens=np.broadcast_to(np.uint32(0), (record.num_tokens,)),
            block_size_tokens=record.block_size_tokens,
            block_hashes=np.frombuffer(record.block_hashes, dtype="<u8"),
            segments=record.segments,
        ),
        domain_id=record.domain_id,
        unknown_segments=frozenset(record.unknown_segments),
        best_prefix_tokens=record.best_prefix_tokens,
    )
