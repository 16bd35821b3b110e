"""What vLLM reads from the environment, once, when it is imported."""

import os


def prepare_environment() -> None:
    """One process with all cores and no word to anyone else. Call it before anything imports vLLM."""
    os.environ.update(
        {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
        }
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
