"""vLLM workers of both roles behind the ports that Dynamo's side knows."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from nebula_protocol.handover import Handover, Sampled
from nebula_protocol.ids import RequestId
from pic_worker.adapters.vllm.decode_service import DecodeService
from pic_worker.adapters.vllm.engine import VllmEngine
from pic_worker.adapters.vllm.prefill_service import PrefillService
from pic_worker.adapters.vllm.sampling import sampling_params
from pic_worker.errors import BadWorkError
from pic_worker.first_token import begin_answer
from pic_worker.metrics import WorkerMetrics
from pic_worker.prompt_cutter import PromptCutter
from pic_worker.work import WorkRequest


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

    async def prefill(self, request_id: RequestId, work: WorkRequest) -> Handover:
        request = self.cutter.engine_request(request_id, work.tokens, work.options, work.plan)
        return await self.service.prefill(request, work.body)

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
        self, request_id: RequestId, work: WorkRequest, handover: Handover | None
    ) -> AsyncGenerator[Sampled, None]:
        room_tokens = self.context_tokens - len(work.tokens)
        if room_tokens < 1:
            raise BadWorkError(f"a prompt of {len(work.tokens)} tokens leaves no room for an answer")
        limit = room_tokens if work.max_tokens is None else min(work.max_tokens, room_tokens)
        begun = begin_answer(replace(work, max_tokens=limit), handover)
        if begun.first is not None:
            yield begun.first
        if begun.rest is None:
            if handover is not None and handover.kv_transfer_params is not None:
                self.service.release(request_id, work.tokens, handover)
            return
        params = sampling_params(
            begun.rest.body,
            max_tokens=begun.rest.max_tokens or 1,
            for_prefill=False,
            defaults=self.sampling_defaults,
        )
        lineage = f"decoded/{work.options.cache_salt}"
        async with aclosing(
            self.service.decode(request_id, begun.rest.tokens, params, handover, own_lineage=lineage)
        ) as pieces:
            async for piece in pieces:
                yield piece

    async def close(self) -> None:
        await self.started.aclose()
