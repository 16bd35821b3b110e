"""vLLM's CPU worker with PIC."""

from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.cpu_worker import CPUWorker

from pic_worker.adapters.vllm.runner_handover import find_arena, hand_over


class PicCpuWorker(CPUWorker):
    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        super().initialize_from_config(kv_cache_config)
        hand_over(self.model_runner)

    def nebula_arena(self) -> tuple[str, int] | None:
        """Called by the worker's process on all ranks."""
        return find_arena()
