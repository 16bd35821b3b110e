"""vLLM workers that hand their model runner to the connector, which has no other way to it."""

from typing import Any, Final, Protocol, runtime_checkable

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.platforms import current_platform

CPU_WORKER: Final = "pic_worker.adapters.vllm.cpu_worker.NebulaCpuWorker"
GPU_WORKER: Final = "pic_worker.adapters.vllm.gpu_worker.NebulaGpuWorker"


@runtime_checkable
class TakesRunner(Protocol):
    """A connector that runs the model."""

    def bind_runner(self, model_runner: Any) -> None: ...


def worker_class_name() -> str:
    """For vLLM's `worker_cls`, by the platform that vLLM runs on."""
    return CPU_WORKER if current_platform.is_cpu() else GPU_WORKER


def hand_over(model_runner: Any) -> None:
    """Gives the runner to each connector of this process that takes it, also inside a MultiConnector."""
    if has_kv_transfer_group():
        for connector in _connectors(get_kv_transfer_group()):
            if isinstance(connector, TakesRunner):
                connector.bind_runner(model_runner)


def _connectors(group: Any) -> list[Any]:
    return list(group._connectors) if isinstance(group, MultiConnector) else [group]
