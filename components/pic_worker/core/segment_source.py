"""Serving peers: which of the segments they want are here, are coming, or are not."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from nebula_protocol.ids import DomainId, Origin
from nebula_protocol.messages import FetchedSegment, FetchRequest, WantedSegment
from pic_worker.core.deadline import is_due
from pic_worker.core.effects import FetchAnswer, TicketId
from pic_worker.core.segment_shelf import SegmentShelf
from pic_worker.core.store_entry import SegmentKey, StoredSegment
from pic_worker.core.stream import Production


class _Lease(NamedTuple):
    ends_at_s: float
    ticket: TicketId


@dataclass(slots=True)
class _Ticket:
    """One peer's fetch while it is undecided."""

    ticket: TicketId
    domain_id: DomainId
    wanted: tuple[WantedSegment, ...]
    decide_by_s: float
    unknown_until_s: float
    """A join of a segment that nobody here produces is declined then."""
    answers: list[FetchedSegment | None]
    """In the order wanted; None while undecided."""
    production: Production | None = None
    """The last step that computes some of them."""

    def key(self, index: int) -> SegmentKey:
        return SegmentKey(self.domain_id, self.wanted[index].segment_hash)

    def undecided(self) -> list[int]:
        return [index for index, answer in enumerate(self.answers) if answer is None]


class Produced(NamedTuple):
    """A segment that a step completes: its layers can be sent as they are computed."""

    token_bytes: bytes
    origin: Origin


@dataclass(slots=True)
class SegmentSource:
    """Every segment that is promised stays pinned until its ticket is closed or its lease ends by itself."""

    shelf: SegmentShelf
    kv_bytes_per_token: int
    lease_s: float
    join_grace_s: float
    _undecided: dict[TicketId, _Ticket] = field(default_factory=dict)
    _pins: dict[TicketId, list[SegmentKey]] = field(default_factory=dict)
    _leases: deque[_Lease] = field(default_factory=deque)
    """Of decided tickets, the first to end in front."""
    _answers: list[FetchAnswer] = field(default_factory=list)
    _produced: dict[SegmentKey, Produced] = field(default_factory=dict)
    """What the step in flight completes."""
    _production: Production | None = None

    def serve(self, request: FetchRequest, ticket: TicketId, now_s: float) -> None:
        """Decides what can be decided now; without joins that is everything."""
        open_ticket = _Ticket(
            ticket=ticket,
            domain_id=request.domain_id,
            wanted=request.segments,
            decide_by_s=now_s + request.wait_s,
            unknown_until_s=now_s + min(request.wait_s, self.join_grace_s),
            answers=[None] * len(request.segments),
        )
        self._undecided[ticket] = open_ticket
        self._pins[ticket] = []
        for index, wanted in enumerate(request.segments):
            stored = self.shelf.store.find_segment(open_ticket.key(index))
            if stored is not None:
                self._promise(open_ticket, index, stored)
            elif wanted.join and open_ticket.key(index) in self._produced:
                self._promise_produced(open_ticket, index)
            elif not wanted.join:
                _decline(open_ticket, index)
        self._close_if_decided(open_ticket, now_s)

    @property
    def has_joins(self) -> bool:
        """Whether some peer waits for a segment."""
        return bool(self._undecided)

    def begin_step(self, produced: dict[SegmentKey, Produced], production: Production, now_s: float) -> None:
        """A step begins that will complete these segments: joins of them are decided."""
        self._produced, self._production = produced, production
        for open_ticket in list(self._undecided.values()):
            for index in open_ticket.undecided():
                if open_ticket.key(index) in produced:
                    self._promise_produced(open_ticket, index)
            self._close_if_decided(open_ticket, now_s)

    def end_step(self) -> None:
        self._produced, self._production = {}, None

    def segment_stored(self, key: SegmentKey, now_s: float) -> None:
        for open_ticket in list(self._undecided.values()):
            for index in open_ticket.undecided():
                stored = self.shelf.store.find_segment(key) if open_ticket.key(index) == key else None
                if stored is not None:
                    self._promise(open_ticket, index, stored)
            self._close_if_decided(open_ticket, now_s)

    def segment_given_up(self, key: SegmentKey, now_s: float) -> None:
        if self.shelf.in_flight.is_coming(key):
            return
        for open_ticket in list(self._undecided.values()):
            for index in open_ticket.undecided():
                if open_ticket.key(index) == key:
                    _decline(open_ticket, index)
            self._close_if_decided(open_ticket, now_s)

    def close(self, ticket: TicketId) -> None:
        """The transfer is over or given up."""
        self._undecided.pop(ticket, None)
        for key in self._pins.pop(ticket, ()):
            self.shelf.store.unpin_segment(key)

    def advance(self, now_s: float) -> None:
        """Declines joins that took too long, and ends leases."""
        for open_ticket in list(self._undecided.values()):
            if is_due(self._next_decline_s(open_ticket), now_s):
                for index in open_ticket.undecided():
                    if is_due(self._decline_at_s(open_ticket, index), now_s):
                        _decline(open_ticket, index)
                self._close_if_decided(open_ticket, now_s)
        while self._leases and is_due(self._leases[0].ends_at_s, now_s):
            self.close(self._leases.popleft().ticket)

    def next_deadline_s(self) -> float | None:
        deadlines = [self._next_decline_s(open_ticket) for open_ticket in self._undecided.values()]
        if self._leases:
            deadlines.append(self._leases[0].ends_at_s)
        return min(deadlines, default=None)

    def drain(self) -> tuple[FetchAnswer, ...]:
        """The answers since the last drain."""
        if not self._answers:
            return ()
        answers = tuple(self._answers)
        self._answers.clear()
        return answers

    def _decline_at_s(self, open_ticket: _Ticket, index: int) -> float:
        is_coming = self.shelf.in_flight.is_coming(open_ticket.key(index))
        return open_ticket.decide_by_s if is_coming else open_ticket.unknown_until_s

    def _next_decline_s(self, open_ticket: _Ticket) -> float:
        return min(self._decline_at_s(open_ticket, index) for index in open_ticket.undecided())

    def _promise(self, open_ticket: _Ticket, index: int, stored: StoredSegment) -> None:
        if stored.num_tokens != open_ticket.wanted[index].num_tokens:
            _decline(open_ticket, index)
            return
        self.shelf.store.pin_segment(stored.key)
        self._pins[open_ticket.ticket].append(stored.key)
        open_ticket.answers[index] = FetchedSegment(
            segment_hash=stored.key.segment_hash,
            token_bytes=stored.token_bytes,
            origin=stored.origin,
            kv_bytes=stored.num_tokens * self.kv_bytes_per_token,
        )

    def _promise_produced(self, open_ticket: _Ticket, index: int) -> None:
        """No pin: the layers leave from the device tier as they are computed."""
        key = open_ticket.key(index)
        produced = self._produced[key]
        open_ticket.production = self._production
        open_ticket.answers[index] = FetchedSegment(
            segment_hash=key.segment_hash,
            token_bytes=produced.token_bytes,
            origin=produced.origin,
            kv_bytes=open_ticket.wanted[index].num_tokens * self.kv_bytes_per_token,
        )

    def _close_if_decided(self, open_ticket: _Ticket, now_s: float) -> None:
        if open_ticket.undecided():
            return
        del self._undecided[open_ticket.ticket]
        answers = tuple(answer for answer in open_ticket.answers if answer is not None)
        if self._pins[open_ticket.ticket]:
            self._leases.append(_Lease(now_s + self.lease_s, open_ticket.ticket))
        else:
            del self._pins[open_ticket.ticket]
        num_bytes = sum(answer.kv_bytes for answer in answers)
        self._answers.append(FetchAnswer(open_ticket.ticket, answers, num_bytes, open_ticket.production))


def _decline(open_ticket: _Ticket, index: int) -> None:
    open_ticket.answers[index] = FetchedSegment(segment_hash=open_ticket.wanted[index].segment_hash, token_bytes=None)
