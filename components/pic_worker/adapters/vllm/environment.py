"""What vLLM reads from the environment. To be set before vLLM is imported: its processes inherit it."""

import os
import socket

from pic_worker.errors import StartError
from pic_worker.settings import WorkerSettings

_LOGGING_LEVELS = {"debug": "DEBUG", "info": "WARNING", "warning": "WARNING", "error": "ERROR"}
"""vLLM's "info" is pages long for each start; what matters of it is in this worker's own lines."""


def prepare_environment(settings: WorkerSettings) -> None:
    """Variables of vLLM and its libraries for this worker; what the user has set already stays where it is harmless.

    Raises:
        StartError: no port is free for the transfer of KV.
    """
    vllm = settings.vllm
    os.environ.update(
        {
            # Models are folders here; nothing is to be looked up or reported elsewhere.
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # Events name blocks by integers, as Dynamo's do.
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "1",
            # A fork would copy the threads of Dynamo's runtime half.
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": vllm.transfer_host,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(vllm.transfer_port or _free_ports(vllm.tensor_parallel)),
            # Until vLLM 0.27; later versions take the connector's own setting.
            "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": str(round(settings.prompt_hold_s)),
            "VLLM_CPU_OMP_THREADS_BIND": vllm.cpu_cores,
        }
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", _LOGGING_LEVELS[settings.log_level])
    if vllm.cpu_cores == "nobind":
        # Threads of several workers share cores: those that wait must not keep the others from running.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if vllm.cpu_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(vllm.cpu_threads)
    if vllm.tensor_parallel == 1:
        # Without a GPU, vLLM would otherwise put the one rank into a process of its own.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def _free_ports(num_ports: int) -> int:
    """The first of as many free ports in a row."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("", 0))
            first: int = probe.getsockname()[1]
        if all(_is_free(port) for port in range(first, first + num_ports)):
            return first
    raise StartError(f"there are no {num_ports} free ports in a row for the transfer of KV")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except (OSError, OverflowError):
            return False
    return True
