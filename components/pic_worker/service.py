"""Drives the engine core in real time: waits for its steps and carries out its effects."""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from nebula_protocol.card import WorkerCard
from nebula_protocol.events import PicEvent, WorkerPicEvents
from nebula_protocol.handover import Handover
from nebula_protocol.ids import RequestId
from nebula_protocol.messages import (
    FetchReply,
    FetchRequest,
    PeerReply,
    PeerRequest,
    PromptPulled,
    PullPrompt,
    SetSplit,
    StateChunk,
)
from nebula_protocol.receipt import Receipt
from pic_worker.core.deadline import is_due
from pic_worker.core.effects import Effects, FetchAnswer, TicketId
from pic_worker.core.engine_request import EngineRequest, HelperRequest
from pic_worker.core.errors import DuplicateRequestError, PromptRefusedError
from pic_worker.core.link import Link
from pic_worker.core.sim_engine import SimEngine
from pic_worker.core.step_plan import StepPlan
from pic_worker.core.stream import Stream
from pic_worker.errors import BadWorkError
from pic_worker.fetcher import Coming, Fetched, Fetcher
from pic_worker.metrics import WorkerMetrics
from pic_worker.ports import BlockEvents, Clock, SegmentEvents
from pic_worker.state_chunks import chunk_state

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Links:
    """The two directions of this worker's link."""

    egress: Link
    ingress: Link


class PrefillService:
    """One engine, one event loop. Every call into the core is followed by its effects before the next call."""

    def __init__(
        self,
        *,
        card: WorkerCard,
        engine: SimEngine,
        fetcher: Fetcher,
        links: Links,
        block_events: BlockEvents,
        segment_events: SegmentEvents,
        metrics: WorkerMetrics,
        clock: Clock,
    ) -> None:
        self._card = card
        self._engine = engine
        self._fetcher = fetcher
        self._links = links
        self._block_events = block_events
        self._segment_events = segment_events
        self._metrics = metrics
        self._clock = clock
        self._transfers = metrics.transfers(card.engine)
        self._wake = asyncio.Event()
        self._waiting: dict[RequestId, asyncio.Future[Receipt]] = {}
        self._answers: dict[TicketId, asyncio.Future[FetchAnswer]] = {}
        self._tickets = itertools.count()
        self._snapshots = itertools.count()
        self._outbox: asyncio.Queue[tuple[PicEvent, ...]] = asyncio.Queue()

    # ---- requests ----

    async def prefill(self, request: EngineRequest) -> Handover:
        """The prompt's prefill, done.

        Raises:
            BadWorkError: the prompt can never run here, or the request is here already.
        """
        receipt = await self._finish(request.request_id, lambda: self._engine.submit(request, self._clock()))
        return Handover(
            request_id=request.request_id,
            prefill_worker_id=self._card.worker_id,
            epoch=self._card.epoch,
            prompt_tokens=receipt.prompt_tokens,
            kv_bytes=receipt.prompt_tokens * self._card.kv_bytes_per_token,
            receipt=receipt,
        )

    async def help(self, request: HelperRequest) -> Receipt:
        """Segments computed alone, done.

        Raises:
            BadWorkError: as for `prefill`.
        """
        return await self._finish(request.request_id, lambda: self._engine.submit_helper(request, self._clock()))

    async def _finish(self, request_id: RequestId, submit: Callable[[], Effects]) -> Receipt:
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        try:
            effects = submit()
        except (DuplicateRequestError, PromptRefusedError) as error:
            raise BadWorkError(str(error)) from error
        self._waiting[request_id] = future
        self._apply(effects)
        try:
            return await future
        except asyncio.CancelledError:
            # Also when it was done at the same moment: nobody learns where its KV is held. Unless another request of
            # the same name has taken its place since.
            if self._waiting.get(request_id, future) is future:
                self._waiting.pop(request_id, None)
                self._apply(self._engine.abort(request_id, self._clock()))
            raise

    # ---- the engine's clockwork ----

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish_segment_events())
            tasks.create_task(self._step_loop())

    async def _step_loop(self) -> None:
        due_s = self._clock()
        while True:
            turn = self._engine.next_step(self._clock())
            self._apply(turn.effects)
            if turn.step is None:
                await self._wait()
                due_s = self._clock()
            else:
                # Steps follow each other on the simulated time line: a late wake-up does not lengthen the next step.
                due_s += turn.step.duration_s
                await self._work(turn.step, due_s)

    async def _work(self, step: StepPlan, due_s: float) -> None:
        while not is_due(due_s, self._clock()):
            # Peers and held prompts whose time is over do not have to wait for the step.
            await self._wait(due_s)
        while (stall_s := self._engine.step_stall_s(self._clock())) > 0.0:
            await self._wait(self._clock() + stall_s)
        now_s = self._clock()
        self._metrics.observe_step(step.duration_s, step.num_tokens, lag_s=now_s - due_s)
        self._apply(self._engine.finish_step(now_s))

    async def _wait(self, until_s: float = math.inf) -> None:
        """Until something was submitted, has arrived, or times out."""
        deadline_s = self._engine.next_deadline_s()
        end_s = until_s if deadline_s is None else min(until_s, deadline_s)
        timeout_s = None if end_s == math.inf else max(0.0, end_s - self._clock())
        self._wake.clear()
        try:
            await asyncio.wait_for(self._wake.wait(), timeout_s)
        except TimeoutError:
            self._apply(self._engine.advance(self._clock()))

    # ---- effects ----

    def _apply(self, effects: Effects) -> None:
        self._publish(effects)
        for command in effects.fetches:
            self._fetcher.start(command, self._fetch_finished, self._segment_comes)
        for answer in effects.answers:
            if (asked := self._answers.get(answer.ticket)) is not None and not asked.done():
                asked.set_result(answer)
        for finished in effects.finished:
            self._metrics.observe_receipt(finished.receipt, is_helper=finished.is_helper)
            if (future := self._waiting.pop(finished.request_id, None)) is not None and not future.done():
                future.set_result(finished.receipt)
        self._wake.set()

    def _fetch_finished(self, outcome: Fetched) -> None:
        self._apply(
            self._engine.fetch_finished(outcome.request_id, outcome.segment_hash, outcome.result, self._clock())
        )

    def _segment_comes(self, coming: Coming) -> None:
        self._engine.fetch_streams(coming.request_id, coming.segment_hash, coming.stream, self._clock())
        self._wake.set()

    def _publish(self, effects: Effects) -> None:
        pic_events: list[PicEvent] = []
        for event in effects.events:
            if isinstance(event, PicEvent):
                pic_events.append(event)
            else:
                self._block_events.publish(event)
        if pic_events:
            self._outbox.put_nowait(tuple(pic_events))

    async def _publish_segment_events(self) -> None:
        """One task, so that events leave in order."""
        while True:
            events = await self._outbox.get()
            await self._segment_events.publish(
                WorkerPicEvents(worker_id=self._card.worker_id, epoch=self._card.epoch, events=events)
            )

    # ---- what others ask ----

    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        match request:
            case FetchRequest():
                return await self._answer_fetch(request)
            case PullPrompt():
                return await self._answer_pull(request)

    async def _answer_fetch(self, request: FetchRequest) -> FetchReply:
        ticket = TicketId(next(self._tickets))
        future: asyncio.Future[FetchAnswer] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = future
        try:
            self._apply(self._engine.serve_fetch(request, ticket, self._clock()))
            answer = await future
        except asyncio.CancelledError:
            self._engine.close_fetch(ticket)
            raise
        finally:
            del self._answers[ticket]
        stream, now_s = self._stream(answer), self._clock()
        self._transfers.count_sent(answer.kv_bytes)
        # The lease ends with the transfer, which goes on after the reply.
        asyncio.get_running_loop().call_later(max(0.0, stream.last_at_s - now_s), self._engine.close_fetch, ticket)
        return FetchReply(
            epoch=self._card.epoch,
            segments=answer.segments,
            first_in_s=max(0.0, stream.first_at_s - now_s),
            last_in_s=max(0.0, stream.last_at_s - now_s),
        )

    def _stream(self, answer: FetchAnswer) -> Stream:
        now_s = self._clock()
        if not answer.kv_bytes:
            return Stream(now_s, now_s)
        return self._links.egress.stream(answer.kv_bytes, self._card.stream_pieces, answer.production, now_s)

    async def _answer_pull(self, request: PullPrompt) -> PromptPulled:
        await self._send(self._engine.held_prompt_tokens(request.request_id) * self._card.kv_bytes_per_token)
        # Asked again, since the hold may have ended while the KV was on its way.
        kv_bytes = self._engine.prompt_pulled(request.request_id) * self._card.kv_bytes_per_token
        self._wake.set()
        return PromptPulled(found=kv_bytes > 0, kv_bytes=kv_bytes)

    async def _send(self, kv_bytes: int) -> None:
        if kv_bytes:
            sent_s = self._links.egress.reserve(kv_bytes, self._clock())
            await asyncio.sleep(max(0.0, sent_s - self._clock()))

    def state_chunks(self) -> Iterator[StateChunk]:
        return chunk_state(self._engine.state_snapshot(), self._card, snapshot_id=next(self._snapshots))

    def is_quiescent(self) -> bool:
        """Nothing runs, and no prompt's KV waits to be pulled."""
        stats = self._engine.stats()
        return not (stats.num_waiting or stats.num_running or stats.num_helpers or stats.num_held)

    def set_split(self, control: SetSplit) -> None:
        self._engine.set_split(control.prefix_ratio)
        self._metrics.set_split(control.prefix_ratio)
