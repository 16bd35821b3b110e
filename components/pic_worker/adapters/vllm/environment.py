"""What vLLM reads from the environment. To be set before vLLM is imported: its processes inherit it."""

import errno
import os

from pic_worker.adapters.free_port import free_port
from pic_worker.errors import StartError
from pic_worker.settings import WorkerSettings
from pic_worker.vllm_settings import VllmSettings

_LOGGING_LEVELS = {"debug": "DEBUG", "info": "WARNING", "warning": "WARNING", "error": "ERROR"}
"""vLLM's "info" is pages long for each start; what matters of it is in this worker's own lines."""


def prepare_environment(settings: WorkerSettings) -> None:
    """Variables of vLLM and its libraries for this worker; what the user has set already stays where it is harmless.

    Raises:
        StartError: this process cannot listen on transfer_host and transfer_port.
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
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(_transfer_port(vllm)),
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


def _transfer_port(vllm: VllmSettings) -> int:
    """Another process may have it: a named one is waited for, another one is left (`HandshakeListener`)."""
    host, port = vllm.transfer_host, vllm.transfer_port
    try:
        return free_port(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return port
        raise StartError(f"vllm.transfer_host {host!r}, port {port}: {error.strerror}") from error
