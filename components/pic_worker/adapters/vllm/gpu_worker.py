"""vLLM's GPU worker with PIC. Written by reading: it has not run on a GPU yet."""

from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.gpu_worker import Worker

from pic_worker.adapters.vllm.worker_class import hand_over


class NebulaGpuWorker(Worker):
    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        super().initialize_from_config(kv_cache_config)
        hand_over(self.model_runner)
