"""Prefill on vLLM: prompts in; first tokens, receipts and events out."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping

import structlog
from vllm import SamplingParams
from vllm.outputs import RequestOutput

from nebula_protocol.card import WorkerCard
from nebula_protocol.codec import to_plain
from nebula_protocol.handover import Handover
from nebula_protocol.ids import RequestId, SegmentHash
from nebula_protocol.messages import (
    FetchedSegment,
    FetchReply,
    FetchRequest,
    PeerReply,
    PeerRequest,
    PromptPulled,
    PullPrompt,
    SetSplit,
    StateChunk,
)
from nebula_protocol.plan import SegmentPlan, Source
from nebula_protocol.tokens import TokenArray
from pic_worker.adapters.vllm.engine import VllmEngine
from pic_worker.adapters.vllm.engine_events import EngineEvents
from pic_worker.adapters.vllm.engine_wire import ORDER_KEY, PrefillFacts, PrefillKind, PrefillOrder
from pic_worker.adapters.vllm.held_prompts import HeldPrompts
from pic_worker.adapters.vllm.plain_facts import plain_facts
from pic_worker.adapters.vllm.priorities import HELPER_PRIORITY, PROMPT_PRIORITY
from pic_worker.adapters.vllm.receipts import ReceiptMaker
from pic_worker.adapters.vllm.sampled import LENGTH, TokenText, read_output
from pic_worker.adapters.vllm.sampling import sampling_params
from pic_worker.core.engine_request import EngineRequest, HelperRequest
from pic_worker.core.store_entry import SegmentKey
from pic_worker.errors import BadWorkError
from pic_worker.metrics import WorkerMetrics
from pic_worker.ports import Clock
from pic_worker.segment_intake import SegmentIntake
from pic_worker.settings import WorkerSettings
from pic_worker.state_chunks import chunk_state

log = structlog.get_logger()

_FACTS_LIMIT_S = 5.0
"""The facts of a prefill come by another way than its token, at about the same time."""


class PrefillService:
    """One engine, one event loop."""

    def __init__(
        self,
        *,
        settings: WorkerSettings,
        card: WorkerCard,
        engine: VllmEngine,
        events: EngineEvents,
        receipts: ReceiptMaker,
        intake: SegmentIntake,
        metrics: WorkerMetrics,
        token_text: TokenText,
        sampling_defaults: Mapping[str, object],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._card = card
        self._engine = engine
        self._events = events
        self._receipts = receipts
        self._intake = intake
        self._metrics = metrics
        self._token_text = token_text
        self._sampling_defaults = sampling_defaults
        self._clock = clock
        self._running: set[RequestId] = set()
        self._held = HeldPrompts(settings.prompt_hold_s)
        self._snapshots = itertools.count()

    # ---- requests ----

    async def prefill(self, request: EngineRequest, body: Mapping[str, object]) -> Handover:
        """The prompt's prefill, done.

        Raises:
            BadWorkError: the engine refuses it, or the request is here already.
        """
        started_s = self._clock()
        params = sampling_params(body, max_tokens=1, for_prefill=True, defaults=self._sampling_defaults)
        params.extra_args = {"kv_transfer_params": self._transfer_params(request)}
        self._begin(request.request_id)
        try:
            async with self._intake.prepared(request) as intake:
                output, facts = await self._compute(request, params)
        finally:
            self._running.discard(request.request_id)
        now_s = self._clock()
        receipt = self._receipts.prompt_receipt(
            request, facts, total_s=now_s - started_s, last_event_ids=self._events.last_event_ids(), intake=intake
        )
        self._metrics.observe_receipt(receipt, is_helper=False)
        first = read_output(output, self._token_text)
        if request.hold_prompt and first.finish_reason == LENGTH:
            # Otherwise the answer is whole, and nobody comes for the KV.
            self._held.hold(request.request_id, facts.prompt_tokens, now_s)
        return Handover(
            request_id=request.request_id,
            prefill_worker_id=self._card.worker_id,
            epoch=self._card.epoch,
            prompt_tokens=facts.prompt_tokens,
            kv_bytes=facts.prompt_tokens * self._card.kv_bytes_per_token,
            receipt=receipt,
            first=first,
            lineage=request.lineage,
            kv_transfer_params=output.kv_transfer_params if request.hold_prompt else None,
        )

    async def help(self, request: HelperRequest) -> None:
        """Segments computed alone, each by a request of its own; they run beside each other. Those that are here or
        coming are left out.

        Raises:
            BadWorkError: as for `prefill`.
        """
        self._begin(request.request_id)
        try:
            async with asyncio.TaskGroup() as tasks:
                for index, (segment_hash, tokens) in enumerate(_segments_of(request)):
                    # Whoever waits for it finds it here, or coming: one computation is enough.
                    if not self._intake.is_coming(SegmentKey(request.domain_id, segment_hash)):
                        tasks.create_task(self._compute_alone(request, index, segment_hash, tokens))
        except* BadWorkError as group:
            raise BadWorkError(str(group.exceptions[0])) from group
        finally:
            self._running.discard(request.request_id)

    def _begin(self, request_id: RequestId) -> None:
        if request_id in self._running:
            raise BadWorkError(f"request {request_id} is here already")
        self._running.add(request_id)

    async def _compute(self, request: EngineRequest, params: SamplingParams) -> tuple[RequestOutput, PrefillFacts]:
        with self._events.expect_facts(request.request_id) as expected:
            output = await self._run(
                request.request_id, request.tokens, params, salt=request.lineage, priority=PROMPT_PRIORITY
            )
            if not self._settings.pic:
                return output, plain_facts(request, output, self._settings.max_step_tokens)
            try:
                return output, await asyncio.wait_for(expected, _FACTS_LIMIT_S)
            except TimeoutError:
                log.error("prefill_facts_missing", request_id=request.request_id)
                return output, plain_facts(request, output, self._settings.max_step_tokens)

    async def _run(
        self, request_id: str, tokens: TokenArray, params: SamplingParams, *, salt: str, priority: int
    ) -> RequestOutput:
        last: RequestOutput | None = None
        async for output in self._engine.generate(
            request_id, tokens.tolist(), params, cache_salt=salt, priority=priority
        ):
            last = output
        if last is None or not last.outputs or not last.outputs[0].token_ids:
            raise RuntimeError(f"vLLM ended request {request_id} without a token")
        return last

    def _transfer_params(self, request: EngineRequest) -> dict[str, object]:
        params: dict[str, object] = {}
        if request.hold_prompt:
            params |= {"do_remote_decode": True, "do_remote_prefill": False}
        if self._settings.pic:
            order = PrefillOrder(
                request_id=request.request_id,
                domain_id=request.domain_id,
                lineage=request.lineage,
                segments=request.segments,
                fusion=request.fusion or self._settings.fusion,
                has_plan=request.has_plan,
                may_reuse=not request.domain_differs,
            )
            params[ORDER_KEY] = to_plain(order)
        return params

    async def _compute_alone(
        self, request: HelperRequest, index: int, segment_hash: SegmentHash, tokens: TokenArray
    ) -> None:
        request_id = RequestId(f"{request.request_id}/{index}")
        # Apart from prompts that begin with the same tokens: its blocks are of no use to them behind its domain.
        lineage = f"alone/{request.domain_id}"
        whole = SegmentPlan(start=0, end=len(tokens), segment_hash=segment_hash, source=Source.COMPUTE)
        order = PrefillOrder(
            request_id=request_id,
            kind=PrefillKind.ALONE,
            domain_id=request.domain_id,
            lineage=lineage,
            segments=(whole,),
            fusion=self._settings.fusion,
        )
        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        params.extra_args = {"kv_transfer_params": {ORDER_KEY: to_plain(order)}}
        key = SegmentKey(request.domain_id, segment_hash)
        with self._intake.producing((key,)), self._events.expect_facts(request_id) as expected:
            await self._run(request_id, tokens, params, salt=lineage, priority=HELPER_PRIORITY)
            # Behind the news that the segment is stored.
            if self._settings.pic:
                await asyncio.wait((expected,), timeout=_FACTS_LIMIT_S)

    # ---- what others ask ----

    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        match request:
            case FetchRequest():
                # Segments of this engine go another way, over the data plane.
                missing = tuple(
                    FetchedSegment(segment_hash=wanted.segment_hash, token_bytes=None) for wanted in request.segments
                )
                return FetchReply(epoch=self._card.epoch, segments=missing)
            case PullPrompt(request_id=request_id, has_arrived=True):
                return self._pulled(self._held.end_transfer(request_id))
            case PullPrompt(request_id=request_id):
                return self._pulled(self._held.begin_transfer(request_id, self._clock()))

    def _pulled(self, num_tokens: int) -> PromptPulled:
        return PromptPulled(found=num_tokens > 0, kv_bytes=num_tokens * self._card.kv_bytes_per_token)

    def state_chunks(self) -> Iterator[StateChunk]:
        return chunk_state(self._events.state(), self._card, snapshot_id=next(self._snapshots))

    def is_quiescent(self) -> bool:
        """Nothing runs, and no prompt's KV waits for its decode worker."""
        return not self._running and not self._held.count(self._clock())

    def set_split(self, control: SetSplit) -> None:
        self._events.set_split(control.prefix_ratio)
        self._metrics.set_split(control.prefix_ratio)


def _segments_of(request: HelperRequest) -> Iterator[tuple[SegmentHash, TokenArray]]:
    at = 0
    for segment_hash, num_tokens in request.segments:
        yield segment_hash, request.tokens[at : at + num_tokens]
        at += num_tokens
