"""Simulated workers of both roles behind the ports that Dynamo's side knows."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from msgspec import structs
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from nebula_protocol.handover import Handover
from nebula_protocol.ids import RequestId
from pic_worker.adapters.nats.server import NatsServer
from pic_worker.decode_service import DecodeService
from pic_worker.errors import BadWorkError
from pic_worker.metrics import WorkerMetrics
from pic_worker.prompt_cutter import PromptCutter
from pic_worker.service import PrefillService
from pic_worker.work import Prefilled, Sampled, WorkRequest

_DEFAULT_MAX_TOKENS = 16
_LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SimPrefillWorker:
    """`PrefillWorker` on the simulated engine."""

    service: PrefillService
    cutter: PromptCutter
    metrics: WorkerMetrics
    answer_token_ids: Sequence[int]
    device_capacity_tokens: int
    client: Client
    server: NatsServer
    main_task: "asyncio.Task[None]"

    @property
    def registry(self) -> CollectorRegistry:
        return self.metrics.registry

    async def prefill(self, request_id: RequestId, work: WorkRequest) -> Prefilled:
        request = self.cutter.engine_request(request_id, work.tokens, work.options, work.plan)
        answered_tokens = 0 if work.plan is None else work.plan.answered_tokens
        handover = structs.replace(await self.service.prefill(request), answered_tokens=answered_tokens)
        token_id = self.answer_token_ids[answered_tokens % len(self.answer_token_ids)]
        return Prefilled(Sampled((token_id,), _LENGTH), handover)

    async def help(self, request_id: RequestId, work: WorkRequest) -> None:
        if work.helper_task is None:
            raise BadWorkError("the request has no helper task")
        await self.service.help(self.cutter.helper_request(request_id, work.helper_task, work.tokens))

    def is_quiescent(self) -> bool:
        return self.service.is_quiescent()

    async def close(self) -> None:
        await self.server.stop()
        self.main_task.cancel()
        await asyncio.wait((self.main_task,))
        await self.client.close()


@dataclass(frozen=True, slots=True)
class SimDecodeWorker:
    """`DecodeWorker` that says a fixed answer at a fixed pace."""

    service: DecodeService
    device_capacity_tokens: int
    context_tokens: int
    client: Client
    registry: CollectorRegistry | None = None
    main_task: "asyncio.Task[None] | None" = None

    async def decode(
        self, request_id: RequestId, work: WorkRequest, handover: Handover
    ) -> AsyncGenerator[Sampled, None]:
        del request_id
        num_before = len(work.tokens) - handover.prompt_tokens + handover.answered_tokens
        asked_tokens = work.max_tokens if work.max_tokens is not None else _DEFAULT_MAX_TOKENS
        num_tokens = min(asked_tokens, self.context_tokens - len(work.tokens))
        if num_tokens < 1:
            raise BadWorkError(f"a prompt of {len(work.tokens)} tokens leaves no room for an answer")
        await self.service.take_over(handover)
        num_sent = 0
        async for token_id in self.service.tokens(num_before=num_before, num_tokens=num_tokens):
            num_sent += 1
            yield Sampled((token_id,), _LENGTH if num_sent == num_tokens else None)

    async def close(self) -> None:
        await self.client.close()
