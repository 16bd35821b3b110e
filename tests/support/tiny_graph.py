"""`graphs:nebula` on real vLLM workers with the tiny model: two that prefill, one that decodes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.running_graph import Json, RunningGraph

from nebula_serve.sim_model.model_folder import packaged_folder

BLOCK = 32
"""Tokens."""
REQUEST_LIMIT_S = 120.0
_READY_LIMIT_S = 400.0


def tiny_model(folder: Path) -> Path:
    """Written into `folder`; the test is skipped where vLLM is not installed."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from pic_worker.adapters.vllm.tiny_model import write_tiny_model

    return write_tiny_model(folder, tokenizer_folder=packaged_folder())


@contextmanager
def tiny_graph(folder: Path, model_dir: Path, *, device_capacity_tokens: int) -> Iterator[RunningGraph]:
    """Ready to answer as the model `tiny`; its settings and logs go to `folder`."""
    worker: Json = {
        "device_capacity_tokens": device_capacity_tokens,
        "max_step_tokens": 1024,
        "max_running": 8,
        "vllm": {"cpu_threads": 1, "enforce_eager": True},
    }
    settings: Json = {
        "Common": {
            "engine": "vllm",
            "model_path": str(model_dir),
            "model_name": "tiny",
            "context_tokens": 4096,
            "block_size_tokens": BLOCK,
        },
        "PrefillWorker": {**worker, "workers": 2, "store_capacity_tokens": 8192},
        "DecodeWorker": {**worker, "workers": 1},
    }
    (folder / "graph.yaml").write_text(yaml.safe_dump(settings))
    graph = RunningGraph(folder, "nebula", "-f", str(folder / "graph.yaml"), request_limit_s=REQUEST_LIMIT_S)
    try:
        graph.wait_until_ready(_READY_LIMIT_S)
        yield graph
    finally:
        graph.stop()


def tokens_of(name: str, num_tokens: int) -> list[int]:
    """Of the tiny model's vocabulary, the same for each name."""
    seed = int.from_bytes(name.encode())
    drawn: list[int] = np.random.default_rng(seed).integers(20, 4000, num_tokens).tolist()
    return drawn
