"""One life of a prefill worker: drives the engine core in virtual time as `PrefillService` drives it in real time."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import simpy

from nebula_bench.cluster.network import Network
from nebula_bench.cluster.peers import Peers, Waiting
from nebula_bench.cluster.step_noise import StepNoise
from nebula_bench.cluster.worker_log import WorkerLog
from nebula_bench.policies.block_index import BlockIndex
from nebula_bench.policies.policy import Policy
from nebula_protocol.card import WorkerCard
from nebula_protocol.cost import LinkFit
from nebula_protocol.events import PicEvent, WorkerKvEvent
from nebula_protocol.ids import DpRank, RequestId, WorkerId
from nebula_protocol.messages import FetchedSegment, FetchReply, FetchRequest, PromptPulled, PullPrompt, StateChunk
from nebula_protocol.plan import Plan
from nebula_protocol.receipt import FallbackReason, Receipt
from nebula_protocol.tokens import as_token_array
from nebula_router.decide import HelperDispatch
from nebula_router.errors import WorkerGoneError
from nebula_router.request import RoutedRequest
from pic_worker.core.effects import Effects, FetchAnswer, FetchCommand, TicketId, WorkerEvent, kv_event_of
from pic_worker.core.link import Link
from pic_worker.core.sim_engine import SimEngine
from pic_worker.core.stream import Production, Stream
from pic_worker.errors import PeerGoneError
from pic_worker.fetcher import FETCH_GRACE_S, SENT_GRACE_S
from pic_worker.prompt_cutter import PromptCutter
from pic_worker.state_chunks import chunk_state


@dataclass(slots=True)
class WorkerParts:
    """What a worker is made of."""

    card: WorkerCard
    engine: SimEngine
    noise: StepNoise
    """Of the engine's step cost."""
    cutter: PromptCutter
    link_fit: LinkFit
    egress: Link = field(init=False)
    ingress: Link = field(init=False)

    def __post_init__(self) -> None:
        self.egress, self.ingress = Link(self.link_fit), Link(self.link_fit)


class PrefillWorker:
    """Every call into the core is followed by its effects before the next call."""

    def __init__(
        self,
        env: simpy.Environment,
        parts: WorkerParts,
        policy: Policy,
        network: Network,
        peers: Peers,
        log: WorkerLog,
    ) -> None:
        self._env = env
        self._policy = policy
        self._parts = parts
        self._engine = parts.engine
        self._network = network
        self._peers = peers
        self._log = log
        self._wake = env.event()
        self._waiting: dict[RequestId, simpy.Event] = {}
        self._answers: dict[TicketId, simpy.Event] = {}
        self._tickets = itertools.count()
        self._snapshots = itertools.count()
        self._blocks = BlockIndex()
        """What is really here; kept only for policies whose workers fetch prefix blocks."""
        self._blocks.replace_worker(self.worker_id, ())
        self._pieces = parts.card.stream_pieces
        self._is_alive = True
        self._loop = env.process(self._run())
        peers.join(self.worker_id, self)

    @property
    def worker_id(self) -> WorkerId:
        return self._parts.card.worker_id

    @property
    def card(self) -> WorkerCard:
        return self._parts.card

    def kill(self) -> None:
        """The process is gone, with all it had: whoever waits for it learns that it broke off."""
        self._is_alive = False
        self._peers.leave(self.worker_id)
        self._log.record_crash(self.worker_id, self._env.now)
        self._loop.interrupt()
        waiting, self._waiting = self._waiting, {}
        for event in waiting.values():
            event.succeed(None)

    # ---- requests ----

    def prefill(self, request: RoutedRequest, plan: Plan | None) -> Waiting[Receipt]:
        """
        Raises:
            WorkerGoneError: the worker died under it.
        """
        work = self._parts.cutter.engine_request(request.request_id, request.tokens, request.options, plan)
        hands_over = request.max_tokens != 1
        if work.hold_prompt != hands_over:
            work = replace(work, hold_prompt=hands_over)
        return (yield from self._finish(work.request_id, self._engine.submit(work, self._env.now)))

    def help(self, helper: HelperDispatch) -> Waiting[Receipt]:
        """
        Raises:
            WorkerGoneError: the worker died under it.
        """
        request_id = RequestId(f"{helper.task.for_request}/helper-{self.worker_id}")
        work = self._parts.cutter.helper_request(request_id, helper.task, as_token_array(helper.token_ids))
        return (yield from self._finish(request_id, self._engine.submit_helper(work, self._env.now)))

    def _finish(self, request_id: RequestId, effects: Effects) -> Waiting[Receipt]:
        done = self._waiting[request_id] = self._env.event()
        self._apply(effects)
        yield done
        if not self._is_alive:
            raise WorkerGoneError(self.worker_id, "it died")
        return cast("Receipt", done.value)

    # ---- the engine's clockwork ----

    def _run(self) -> Waiting[None]:
        env, engine, noise = self._env, self._engine, self._parts.noise
        try:
            while True:
                noise.draw()
                turn = engine.next_step(env.now)
                noise.rest()
                self._apply(turn.effects)
                if turn.step is None:
                    yield from self._idle()
                else:
                    self._log.record_step(self.worker_id, env.now, turn.step.duration_s)
                    yield env.timeout(turn.step.duration_s)
                    yield from self._stall()
                    self._apply(engine.finish_step(env.now))
        except simpy.Interrupt:
            return

    def _stall(self) -> Waiting[None]:
        """Until the last layer that the step waits for is here and computed."""
        while (stall_s := self._engine.step_stall_s(self._env.now)) > 0.0:
            self._wake = self._env.event()
            yield self._wake if stall_s == math.inf else self._env.timeout(stall_s)

    def _idle(self) -> Waiting[None]:
        """Until something was submitted, has arrived, or times out."""
        deadline_s = self._engine.next_deadline_s()
        self._wake = self._env.event()
        if deadline_s is None:
            yield self._wake
            return
        yield self._wake | self._env.timeout(max(0.0, deadline_s - self._env.now))
        if not self._wake.triggered:
            self._apply(self._engine.advance(self._env.now))

    # ---- effects ----

    def _apply(self, effects: Effects) -> None:
        if effects.events:
            self._log.record_events(self.worker_id, effects.events, self._env.now)
            self._network.publish(self.worker_id, self.card.epoch, effects.events)
            if self._policy.fetches_prefix:
                self._note_blocks(effects.events)
        for command in effects.fetches:
            self._env.process(self._fetch(command))
        for answer in effects.answers:
            if (asked := self._answers.get(answer.ticket)) is not None and not asked.triggered:
                asked.succeed(answer)
        for finished in effects.finished:
            if (done := self._waiting.pop(finished.request_id, None)) is not None:
                done.succeed(finished.receipt)
        if not self._wake.triggered:
            self._wake.succeed()

    def _note_blocks(self, events: Sequence[WorkerEvent]) -> None:
        pic = [event for event in events if isinstance(event, PicEvent)]
        device = [event for event in events if not isinstance(event, PicEvent)]
        self._blocks.apply_kv_events(
            WorkerKvEvent(worker_id=self.worker_id, event=kv_event_of(event, DpRank(0))) for event in device
        )
        self._blocks.apply_pic_events(self.worker_id, pic)

    # ---- segments from others: as `Fetcher` ----

    def _fetch(self, command: FetchCommand) -> Waiting[None]:
        if (at_once := self._policy.serve_at_once(command)) is not None:
            self._report(command, FallbackReason.NOT_THERE, at_once)
            return
        request = FetchRequest(
            request_id=command.request_id,
            from_worker=self.worker_id,
            domain_id=command.domain_id,
            wait_s=command.wait_s,
            segments=command.segments,
        )
        kv_bytes = sum(wanted.num_tokens for wanted in command.segments) * self.card.kv_bytes_per_token
        timeout_s = command.wait_s + self._parts.link_fit.transfer_s(kv_bytes) + FETCH_GRACE_S
        try:
            reply = yield from self._peers.fetch(command.from_worker.worker_id, request, timeout_s)
        except PeerGoneError:
            self._report(command, FallbackReason.SOURCE_GONE)
            return
        stream = self._announce(command, reply)
        source_id = command.from_worker.worker_id
        source = self._peers.find(source_id)
        yield self._env.timeout(max(0.0, stream.last_at_s - self._env.now))
        if reply.last_in_s and not self._peers.is_live(source_id, source):
            yield self._env.timeout(SENT_GRACE_S)
            self._report(command, FallbackReason.SOURCE_GONE)
            return
        self._report(command, FallbackReason.NOT_THERE, reply)

    def _announce(self, command: FetchCommand, reply: FetchReply) -> Stream:
        """Tells the engine when the segments arrive, so that a step may meet them layer by layer."""
        now_s = self._env.now
        stream = Stream(now_s + reply.first_in_s, now_s + reply.last_in_s)
        if num_bytes := sum(one.kv_bytes for one in reply.segments):
            stream = self._parts.ingress.take(num_bytes, stream, now_s)
        for segment in reply.segments:
            if segment.token_bytes is not None and self._is_alive:
                self._engine.fetch_streams(command.request_id, segment.segment_hash, stream, now_s)
        if not self._wake.triggered:
            self._wake.succeed()
        return stream

    def _report(self, command: FetchCommand, missing: FallbackReason, reply: FetchReply | None = None) -> None:
        if not self._is_alive:
            return
        answered = {} if reply is None else {one.segment_hash: one for one in reply.segments}
        for wanted in command.segments:
            result = answered.get(wanted.segment_hash, missing)
            self._apply(self._engine.fetch_finished(command.request_id, wanted.segment_hash, result, self._env.now))

    # ---- what others ask ----

    def answer_fetch(self, request: FetchRequest) -> Waiting[FetchReply]:
        prefix = self._policy.serve_prefix(request, self.worker_id, self._blocks)
        if prefix is not None:
            return self._reply(prefix, self._stream(sum(one.kv_bytes for one in prefix), None))
        ticket = TicketId(next(self._tickets))
        asked = self._answers[ticket] = self._env.event()
        self._apply(self._engine.serve_fetch(request, ticket, self._env.now))
        yield asked
        answer = cast("FetchAnswer", asked.value)
        del self._answers[ticket]
        if not self._is_alive:
            # A dead process never answers; whoever asked notices by time.
            yield self._env.event()
        stream = self._stream(answer.kv_bytes, answer.production)
        sent = self._env.timeout(max(0.0, stream.last_at_s - self._env.now))
        sent.callbacks.append(lambda _: self._engine.close_fetch(ticket))
        return self._reply(answer.segments, stream)

    def _reply(self, segments: tuple[FetchedSegment, ...], stream: Stream) -> FetchReply:
        now_s = self._env.now
        return FetchReply(
            epoch=self.card.epoch,
            segments=segments,
            first_in_s=max(0.0, stream.first_at_s - now_s),
            last_in_s=max(0.0, stream.last_at_s - now_s),
        )

    def _stream(self, kv_bytes: int, production: Production | None) -> Stream:
        now_s = self._env.now
        if not kv_bytes:
            return Stream(now_s, now_s)
        return self._parts.egress.stream(kv_bytes, self._pieces, production, now_s)

    def answer_pull(self, request: PullPrompt) -> Waiting[PromptPulled]:
        yield from self._send(self._engine.held_prompt_tokens(request.request_id) * self.card.kv_bytes_per_token)
        # Asked again, since the hold may have ended while the KV was on its way.
        kv_bytes = self._engine.prompt_pulled(request.request_id) * self.card.kv_bytes_per_token
        if not self._wake.triggered:
            self._wake.succeed()
        return PromptPulled(found=kv_bytes > 0, kv_bytes=kv_bytes)

    def _send(self, kv_bytes: int) -> Waiting[None]:
        if kv_bytes:
            sent_s = self._parts.egress.reserve(kv_bytes, self._env.now)
            yield self._env.timeout(max(0.0, sent_s - self._env.now))
        if not self._is_alive:
            # A dead process never answers; whoever asked notices by time.
            yield self._env.event()

    def state_chunks(self) -> Sequence[StateChunk]:
        return tuple(chunk_state(self._engine.state_snapshot(), self.card, snapshot_id=next(self._snapshots)))

    def set_split(self, prefix_ratio: float) -> None:
        self._engine.set_split(prefix_ratio)
