"""vLLM workers of both roles behind the ports that Dynamo's side knows."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from msgspec import structs
from prometheus_client import CollectorRegistry

from nebula_protocol.handover import Handover
from nebula_protocol.ids import RequestId
from pic_worker.adapters.vllm.decode_service import DecodeService
from pic_worker.adapters.vllm.engine import VllmEngine
from pic_worker.adapters.vllm.prefill_service import PrefillService
from pic_worker.adapters.vllm.sampling import sampling_params
from pic_worker.errors import BadWorkError
from pic_worker.metrics import WorkerMetrics
from pic_worker.prompt_cutter import PromptCutter
from pic_worker.work import Prefilled, Sampled, WorkRequest


@dataclass(frozen=True, slots=True)
class VllmPrefillWorker:
    """`PrefillWorker` on vLLM."""

    service: PrefillService
    cutter: PromptCutter
    metrics: WorkerMetrics
    engine: VllmEngine
    main_task: "asyncio.Task[None]"
    started: AsyncExitStack
    """Ends all that was started for this worker, the last one first."""

    @property
    def registry(self) -> CollectorRegistry:
        return self.metrics.registry

    @property
    def device_capacity_tokens(self) -> int:
        return self.engine.facts.device_capacity_tokens

    async def prefill(self, request_id: RequestId, work: WorkRequest) -> Prefilled:
        request = self.cutter.engine_request(request_id, work.tokens, work.options, work.plan)
        prefilled = await self.service.prefill(request, work.body)
        answered_tokens = 0 if work.plan is None else work.plan.answered_tokens
        return Prefilled(prefilled.first, structs.replace(prefilled.handover, answered_tokens=answered_tokens))

    async def help(self, request_id: RequestId, work: WorkRequest) -> None:
        if work.helper_task is None:
            raise BadWorkError("the request has no helper task")
        await self.service.help(self.cutter.helper_request(request_id, work.helper_task, work.tokens))

    def is_quiescent(self) -> bool:
        return self.service.is_quiescent()

    async def close(self) -> None:
        await self.started.aclose()


@dataclass(frozen=True, slots=True)
class VllmDecodeWorker:
    """`DecodeWorker` on vLLM."""

    service: DecodeService
    engine: VllmEngine
    sampling_defaults: Mapping[str, object]
    context_tokens: int
    main_task: "asyncio.Task[None]"
    started: AsyncExitStack
    registry: CollectorRegistry | None = None

    @property
    def device_capacity_tokens(self) -> int:
        return self.engine.facts.device_capacity_tokens

    async def decode(
        self, request_id: RequestId, work: WorkRequest, handover: Handover
    ) -> AsyncGenerator[Sampled, None]:
        room_tokens = self.context_tokens - len(work.tokens)
        max_tokens = room_tokens if work.max_tokens is None else min(work.max_tokens, room_tokens)
        if max_tokens < 1:
            raise BadWorkError(f"a prompt of {len(work.tokens)} tokens leaves no room for an answer")
        params = sampling_params(work.body, max_tokens=max_tokens, for_prefill=False, defaults=self.sampling_defaults)
        async with aclosing(self.service.decode(request_id, work.tokens, params, handover)) as pieces:
            async for piece in pieces:
                yield piece

    async def close(self) -> None:
        await self.started.aclose()
