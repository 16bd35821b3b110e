"""Dynamo's runtime for this process, and this router's place in it."""

import asyncio
import os
from pathlib import Path

from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, Endpoint

from nebula_router.errors import StartError
from nebula_router.settings import RouterSettings

_SYSTEM_PORT_VARIABLE = "DYN_SYSTEM_PORT"


def start_runtime(metrics_port: int) -> DistributedRuntime:
    """Dynamo's runtime on the planes that the environment names; its system server gives /metrics and /health."""
    os.environ.setdefault(_SYSTEM_PORT_VARIABLE, str(metrics_port))
    return DistributedRuntime(
        asyncio.get_running_loop(),
        os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"),
        os.environ.get("DYN_REQUEST_PLANE", "tcp"),
    )


async def register(
    endpoint: Endpoint, settings: RouterSettings, *, block_size_tokens: int, context_tokens: int
) -> None:
    """Makes the frontend send requests for the model to `endpoint`.

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
            ModelType.Chat | ModelType.Completions,
            endpoint,
            str(model_path),
            settings.model_name,
            worker_type=WorkerType.Aggregated,
            kv_cache_block_size=block_size_tokens,
            runtime_config=runtime_config,
        )
    except Exception as error:
        raise StartError(f"Dynamo does not take the model folder {settings.model_path!r}: {error}") from error
