"""vLLM's engine arguments, from the worker's settings."""

from vllm.config import KVEventsConfig, KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs

from nebula_protocol.codec import to_plain
from pic_worker.adapters.vllm.engine_wire import ORDER_KEY, ConnectorSettings
from pic_worker.adapters.vllm.prompt_connector import ANY_PORT, SPARES_CORES
from pic_worker.adapters.vllm.sockets import SocketFolder
from pic_worker.settings import WorkerSettings

_CONNECTOR_MODULE = "pic_worker.adapters.vllm.connector"
_CONNECTOR = "NebulaConnector"
_PROMPT_MODULE = "pic_worker.adapters.vllm.prompt_connector"
_PROMPT_LENDER = "PromptLender"
_PROMPT_TAKER = "PromptTaker"
_WORKER_CLASS_MODULE = "pic_worker.adapters.vllm.worker_class"


def make_engine_args(settings: WorkerSettings, sockets: SocketFolder, *, has_gpu: bool) -> AsyncEngineArgs:
    """Arguments for a worker of the settings' role; the size of the paged cache without a GPU comes later."""
    vllm = settings.vllm
    is_prefill = settings.role == "prefill"
    args: dict[str, object] = {
        "model": settings.model_path,
        "tokenizer": settings.model_path,
        "served_model_name": settings.model_name,
        "dtype": vllm.dtype,
        "seed": vllm.seed,
        "max_model_len": settings.context_tokens,
        "max_num_batched_tokens": settings.max_step_tokens,
        "max_num_seqs": settings.max_running,
        "block_size": settings.block_size_tokens,
        "tensor_parallel_size": vllm.tensor_parallel,
        "enforce_eager": not has_gpu if vllm.enforce_eager is None else vllm.enforce_eager,
        "gpu_memory_utilization": vllm.gpu_memory_utilization,
        "enable_prefix_caching": True,
        # Names of blocks must not depend on the process, so that a router can compare them.
        "prefix_caching_hash_algo": "sha256",
        # A grammar needs it, though tokens go in and tokens come out.
        "skip_tokenizer_init": False,
        "scheduling_policy": "priority",
        "kv_transfer_config": _transfer_config(settings, sockets, has_gpu=has_gpu),
        **vllm.engine_args,
    }
    if is_prefill:
        args["kv_events_config"] = KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=sockets.block_events_url
        )
    if settings.pic:
        # The connector for reuse takes one kind of layer, and NIXL compares this on both sides of a transfer.
        args["disable_hybrid_kv_cache_manager"] = True
    if is_prefill and settings.pic:
        args["worker_cls"] = _worker_class(has_gpu=has_gpu)
    return AsyncEngineArgs(**args)  # type: ignore[arg-type]


def _worker_class(*, has_gpu: bool) -> str:
    return f"{_WORKER_CLASS_MODULE}.{'PicGpuWorker' if has_gpu else 'PicCpuWorker'}"


def _transfer_config(settings: WorkerSettings, sockets: SocketFolder, *, has_gpu: bool) -> KVTransferConfig:
    """NIXL brings a prompt's KV from prefill to decode; the connector for reuse is beside it on prefill workers."""
    nixl: dict[str, object] = {
        "kv_lease_duration": round(settings.prompt_hold_s),
        ANY_PORT: settings.vllm.transfer_port == 0,
    }
    if not has_gpu:
        # One thread of UCX's own instead of four, and asleep when idle: cores are what is short here.
        nixl |= {"num_threads": 0, SPARES_CORES: True}
    if settings.role == "decode":
        return KVTransferConfig(
            kv_connector=_PROMPT_TAKER,
            kv_connector_module_path=_PROMPT_MODULE,
            kv_role="kv_consumer",
            kv_load_failure_policy="fail",
            kv_connector_extra_config=nixl,
        )
    if not settings.pic:
        return KVTransferConfig(
            kv_connector=_PROMPT_LENDER,
            kv_connector_module_path=_PROMPT_MODULE,
            kv_role="kv_producer",
            kv_connector_extra_config=nixl,
        )
    connectors = [
        {
            "kv_connector": _CONNECTOR,
            "kv_connector_module_path": _CONNECTOR_MODULE,
            "kv_role": "kv_both",
            "kv_connector_extra_config": {ORDER_KEY: to_plain(_connector_settings(settings, sockets))},
        },
        {
            "kv_connector": _PROMPT_LENDER,
            "kv_connector_module_path": _PROMPT_MODULE,
            "kv_role": "kv_producer",
            "kv_connector_extra_config": nixl,
        },
    ]
    return KVTransferConfig(
        kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config={"connectors": connectors}
    )


def _connector_settings(settings: WorkerSettings, sockets: SocketFolder) -> ConnectorSettings:
    return ConnectorSettings(
        news_url=sockets.news_url,
        control_url=sockets.control_url,
        store_capacity_tokens=settings.store_capacity_tokens,
        prefix_ratio=settings.prefix_ratio,
        page_tokens=settings.vllm.page_tokens,
        max_recomputed_tokens_per_step=settings.vllm.max_recomputed_tokens_per_step,
        pic=settings.pic,
    )
