"""vLLM's engine, started from the worker's settings."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

import structlog
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from pic_worker.adapters.data_plane import StoreShape
from pic_worker.adapters.vllm.engine_args import make_engine_args
from pic_worker.adapters.vllm.model_facts import ModelFacts, read_model_facts
from pic_worker.adapters.vllm.sockets import SocketFolder
from pic_worker.errors import BadWorkError, StartError
from pic_worker.settings import WorkerSettings

log = structlog.get_logger()

_HEALTH_PERIOD_S = 1.0


class EngineGoneError(Exception):
    """vLLM's processes have ended: so must this one."""


@dataclass(frozen=True, slots=True)
class VllmEngine:
    """The engine as this worker uses it: token ids in, tokens out."""

    client: AsyncLLM
    facts: ModelFacts

    @classmethod
    async def start(cls, settings: WorkerSettings, sockets: SocketFolder) -> "VllmEngine":
        """Takes tens of seconds, during which the event loop goes on.

        Raises:
            StartError: vLLM does not take the model or a setting, or its processes fail.
        """
        try:
            return await asyncio.to_thread(_start, settings, sockets)
        except StartError:
            raise
        except Exception as error:
            # vLLM raises whatever its parts raise, and its processes have logged the rest.
            raise StartError(f"vLLM does not start: {_last_line(error)}") from error

    async def generate(
        self,
        request_id: str,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        cache_salt: str,
        priority: int,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Closed or cancelled, it takes the request back.

        Raises:
            BadWorkError: vLLM refuses the request.
            EngineGoneError: vLLM's processes have ended.
        """
        if max(token_ids, default=0) >= self.facts.vocabulary:
            # vLLM looks only where it has the tokenizer; its processes would end with an index error.
            raise BadWorkError(f"the model knows {self.facts.vocabulary} tokens, none by the id {max(token_ids)}")
        prompt = TokensPrompt(prompt_token_ids=list(token_ids))
        if cache_salt:
            prompt["cache_salt"] = cache_salt
        outputs = self.client.generate(prompt, params, request_id, priority=priority)
        try:
            async for output in outputs:
                yield output
        except EngineDeadError as error:
            raise EngineGoneError(str(error)) from error
        except (ValueError, VLLMValidationError) as error:
            raise BadWorkError(_last_line(error)) from error
        finally:
            await outputs.aclose()

    def sampling_defaults(self) -> Mapping[str, object]:
        """What the model's own generation configuration says of sampling."""
        return dict(self.client.model_config.get_diff_sampling_param())

    async def reset_prefix_cache(self) -> bool:
        return bool(await self.client.reset_prefix_cache())

    async def store_shape(self, page_tokens: int) -> StoreShape:
        """Where the ranks keep the store.

        Raises:
            StartError: they have none, or not alike.
        """
        found = await self.client.collective_rpc("nebula_arena")
        arenas = [arena for arena in found if arena is not None]
        sizes = {page_bytes for _, page_bytes in arenas}
        if len(arenas) != len(found) or len(sizes) != 1:
            raise StartError("the ranks of vLLM have no store that others can read")
        return StoreShape(
            arena_paths=tuple(path for path, _ in arenas), page_tokens=page_tokens, page_bytes=sizes.pop()
        )

    async def watch(self) -> None:
        """Runs until vLLM's processes have ended.

        Raises:
            EngineGoneError: they have.
        """
        while not self.client.errored:
            await asyncio.sleep(_HEALTH_PERIOD_S)
        raise EngineGoneError("vLLM's processes have ended")

    async def close(self) -> None:
        await asyncio.to_thread(self.client.shutdown)


def _start(settings: WorkerSettings, sockets: SocketFolder) -> VllmEngine:
    has_gpu = not current_platform.is_cpu()
    config = make_engine_args(settings, sockets, has_gpu=has_gpu).create_engine_config()
    if config.cache_config.block_size != settings.block_size_tokens:
        raise StartError(
            f"vLLM takes blocks of {config.cache_config.block_size} tokens here: set block_size_tokens to it"
        )
    facts = read_model_facts(settings, config)
    if settings.vllm.kv_cache_bytes is not None:
        config.cache_config.kv_cache_memory_bytes = settings.vllm.kv_cache_bytes
    elif not has_gpu:
        per_rank = facts.kv_bytes_per_token // settings.vllm.tensor_parallel
        # One block is vLLM's own placeholder.
        num_tokens = settings.device_capacity_tokens + settings.block_size_tokens
        config.cache_config.kv_cache_memory_bytes = num_tokens * per_rank
    client = AsyncLLM.from_vllm_config(config, disable_log_stats=False)
    num_blocks = client.vllm_config.cache_config.num_gpu_blocks or 0
    return VllmEngine(client, facts.with_capacity((num_blocks - 1) * settings.block_size_tokens))


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
