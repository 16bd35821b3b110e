"""Dynamo's runtime for this process, and this router's place in it: the model's prefill stage."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from dynamo.common.utils.graceful_shutdown import install_signal_handlers
from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, Endpoint

from nebula_router.errors import StartError
from nebula_router.settings import RouterSettings

_LEAVE_S = 1.0
"""Frontends send requests until they have heard that this router left; file discovery takes half a second."""
_DRAIN_POLL_S = 0.05
_SYSTEM_PORT_VARIABLE = "DYN_SYSTEM_PORT"


def start_runtime(metrics_port: int) -> DistributedRuntime:
    """Dynamo's runtime on the planes that the environment names; its system server gives /metrics and /health."""
    os.environ.setdefault(_SYSTEM_PORT_VARIABLE, str(metrics_port))
    return DistributedRuntime(
        asyncio.get_running_loop(),
        os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"),
        os.environ.get("DYN_REQUEST_PLANE", "tcp"),
    )


def drain_on_signal(
    runtime: DistributedRuntime, endpoint: Endpoint, num_running: Callable[[], int], drain_s: float
) -> None:
    """On SIGTERM and SIGINT leaves discovery, finishes what runs for `drain_s` at most, then ends the runtime."""

    async def drain() -> None:
        deadline_s = asyncio.get_running_loop().time() + drain_s
        while num_running() and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_DRAIN_POLL_S)

    install_signal_handlers(
        asyncio.get_running_loop(), runtime, [endpoint], grace_period_s=_LEAVE_S, drain_callback=drain
    )


async def register(
    endpoint: Endpoint, settings: RouterSettings, *, block_size_tokens: int, context_tokens: int
) -> None:
    """Makes the frontend send the model's prompts to `endpoint` before it sends them to a decode worker.

    Raises:
        StartError: the model folder is missing or Dynamo does not accept it.
    """
    model_path = Path(settings.model_path).resolve()
    if not model_path.is_dir():
        raise StartError(f"the model folder {settings.model_path!r} does not exist")
    runtime_config = ModelRuntimeConfig()
    runtime_config.context_length = context_tokens
    try:
        await register_model(
            ModelInput.Tokens,
            ModelType.Prefill,
            endpoint,
            str(model_path),
            settings.model_name,
            worker_type=WorkerType.Prefill,
            needs=[[WorkerType.Decode]],
            kv_cache_block_size=block_size_tokens,
            runtime_config=runtime_config,
        )
    except Exception as error:
        raise StartError(f"Dynamo does not take the model folder {settings.model_path!r}: {error}") from error
