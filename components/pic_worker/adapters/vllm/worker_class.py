"""What vLLM's `worker_cls` names, on each platform."""

from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.gpu_worker import Worker

from pic_worker.adapters.vllm.runner_handover import find_arena, hand_over

if current_platform.is_cpu():
    # Its import prepares the process for vLLM's CPU kernels.
    from pic_worker.adapters.vllm.cpu_worker import PicCpuWorker as PicCpuWorker


class PicGpuWorker(Worker):
    """vLLM's GPU worker with PIC. Written by reading: it has not run on a GPU yet."""

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        super().initialize_from_config(kv_cache_config)
        hand_over(self.model_runner)

    def nebula_arena(self) -> tuple[str, int] | None:
        """Called by the worker's process on all ranks."""
        return find_arena()
