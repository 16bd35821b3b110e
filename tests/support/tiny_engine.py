"""A tiny model in vLLM, in this process, with the rank half beside it: no connector stands between the tests and it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from nebula_serve.sim_model.model_folder import packaged_folder

MAX_BATCH_TOKENS = 256
BLOCK_TOKENS = 32
PAGE_TOKENS = 16
NUM_LAYERS = 4
STORE_PAGES = 256
_REASON = "vLLM is not installed"


@dataclass(frozen=True)
class TinyEngine:
    vllm_config: Any
    kv_cache_config: Any
    core: Any
    runner: Any
    caches: dict[str, torch.Tensor]

    @property
    def model(self) -> torch.nn.Module:
        model: torch.nn.Module = self.runner.get_model()
        return model

    def prefill(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The block table of a request that vLLM itself has computed, in chunks of `MAX_BATCH_TOKENS`.

        Its blocks are free again, but hold the KV until another request takes them.
        """
        name = f"prefill-{next(_numbers)}"
        self.core.add_request(*_new_request(self.core, name, token_ids))
        blocks: tuple[int, ...] = ()
        while self.core.scheduler.has_unfinished_requests():
            self.core.step()
            if self.core.scheduler.requests.get(name) is not None:
                blocks = tuple(self.core.scheduler.kv_cache_manager.get_block_ids(name)[0])
        return blocks


_numbers = count()


def _new_request(core: Any, name: str, token_ids: Sequence[int]) -> tuple[Any, int]:
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    # Two tokens: after the first, the request still has its blocks.
    sampling = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    request = EngineCoreRequest(
        request_id=name,
        prompt_token_ids=list(token_ids),
        mm_features=None,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=name,
        data_parallel_rank=None,
    )
    added: tuple[Any, int] = core.preprocess_add_request(request)
    return added


@pytest.fixture(scope="module")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyEngine]:
    """One for all tests of a module: it takes 20 s to start."""
    pytest.importorskip("vllm", reason=_REASON)
    folder = tmp_path_factory.mktemp("tiny-model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        is_alone = not torch.distributed.is_initialized()
        llm = _start(folder)
        yield _engine_of(llm)
        _stop(llm, is_alone=is_alone)


def _start(folder: Path) -> Any:
    from vllm import LLM

    from pic_worker.adapters.vllm.tiny_model import write_tiny_model

    return LLM(
        model=str(write_tiny_model(folder, tokenizer_folder=packaged_folder())),
        worker_cls="pic_worker.adapters.vllm.worker_class.PicCpuWorker",
        # What is compared bit for bit was computed in steps of different shape. A CPU without bfloat16 instructions
        # rounds a product to bfloat16 differently with the number of its rows.
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        max_num_batched_tokens=MAX_BATCH_TOKENS,
        max_num_seqs=4,
        block_size=BLOCK_TOKENS,
        kv_cache_memory_bytes=128 << 20,
    )


def _engine_of(llm: Any) -> TinyEngine:
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    config = llm.llm_engine.vllm_config
    layers = config.compilation_config.static_forward_context
    return TinyEngine(config, runner.kv_cache_config, core, runner, {name: layers[name].kv_cache for name in layers})


def _stop(llm: Any, *, is_alone: bool) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    # Engines in one process share its process groups.
    if is_alone:
        cleanup_dist_env_and_memory()
