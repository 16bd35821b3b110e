"""vLLM's own scheduler with the connector's half of it, over ranks without a model."""

from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from support.symbolic_ranks import SAMPLED, SymbolicRanks
from vllm import SamplingParams
from vllm.config import KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from nebula_serve.sim_model.model_folder import packaged_folder
from pic_worker.adapters.vllm.connector import NebulaConnector
from pic_worker.adapters.vllm.engine_wire import (
    ORDER_KEY,
    ConnectorSettings,
    EngineNews,
    PrefillFacts,
    PrefillOrder,
    transfer_params,
)
from pic_worker.adapters.vllm.tiny_model import write_tiny_model

BLOCK_TOKENS = 8
PAGE_TOKENS = 4
NUM_DEVICE_BLOCKS = 17
"""One is vLLM's own; the longest prompt with its answer needs 12."""
MAX_TOKENS = 96
MAX_BATCH_TOKENS = 32
MAX_RECOMPUTED_TOKENS = 12
STORE_TOKENS = 120


class Bulletin:
    """Stands for the socket to the worker's process."""

    def __init__(self) -> None:
        self.news: list[EngineNews] = []

    def send(self, news: EngineNews) -> None:
        self.news.append(news)

    def close(self) -> None:
        pass


class SymbolicEngine:
    def __init__(self, folder: Path, *, runs_ahead: bool) -> None:
        """
        Args:
            runs_ahead: a step is planned before the one before it is done.
        """
        config, cache_config = _config(folder), _cache_config()
        scheduler_class = AsyncScheduler if runs_ahead else Scheduler
        self.scheduler = scheduler_class(
            config,
            kv_cache_config=cache_config,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            log_stats=False,
        )
        self.bulletin = Bulletin()
        connector = self.scheduler.connector
        assert isinstance(connector, NebulaConnector)
        self.half = connector.scheduler_half
        self.desk = connector.control_desk
        """Obeys the tests in their own thread: they are to be the same each time."""
        self.desk.close()
        self.half._news.close()
        self.half._news = self.bulletin
        self.ranks = SymbolicRanks(block_size_tokens=BLOCK_TOKENS, page_tokens=PAGE_TOKENS)
        self._in_flight: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self._max_in_flight = 2 if runs_ahead else 1
        self._num_requests = 0
        self.num_preemptions = 0

    def add(
        self, tokens: Sequence[int], order: PrefillOrder | None, *, salt: str = "", num_answer_tokens: int = 1
    ) -> str:
        self._num_requests += 1
        name = f"request-{self._num_requests}"
        params: dict[str, object] = transfer_params(order) if order is not None else {}
        request = Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(
                max_tokens=num_answer_tokens, ignore_eos=True, extra_args={"kv_transfer_params": params}
            ),
            pooling_params=None,
            cache_salt=salt or None,
            block_hasher=_block_hasher(),
        )
        self.scheduler.add_request(request)
        return name

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        """Plans and executes one more step, and processes the oldest one if enough are open."""
        output = self.scheduler.schedule()
        self.num_preemptions += len(output.preempted_req_ids or ())
        report, received = self.ranks.execute(output, self.scheduler.requests)
        self._in_flight.append((output, self._model_output(output, report, received)))
        if len(self._in_flight) >= self._max_in_flight:
            self._process()

    def drain(self) -> None:
        """Steps until no request is left."""
        for _ in range(2_000):
            if not self.scheduler.has_requests():
                break
            self.step()
        else:
            raise AssertionError("the engine does not come to an end")
        while self._in_flight:
            self._process()

    @property
    def facts(self) -> list[PrefillFacts]:
        return [facts for news in self.bulletin.news for facts in news.finished]

    def assert_nothing_in_use(self) -> None:
        catalogue = self.half.catalogue
        assert (self.half.num_requests, catalogue.pinned_tokens, catalogue.num_reserved) == (0, 0, 0)
        assert catalogue.num_free_pages * PAGE_TOKENS + catalogue.used_tokens == STORE_TOKENS
        assert self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == NUM_DEVICE_BLOCKS - 1

    def _process(self) -> None:
        output, model_output = self._in_flight.popleft()
        self.scheduler.update_from_output(output, model_output)

    def _model_output(self, output: Any, report: Any, received: set[str]) -> ModelRunnerOutput:
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[self._sampled(output, name) for name in names],
            kv_connector_output=KVConnectorOutput(finished_recving=received or None, kv_connector_worker_meta=report),
        )

    def _sampled(self, output: Any, name: str) -> list[int]:
        request = self.scheduler.requests.get(name)
        # The scheduler has counted the step's tokens already.
        if request is None or request.is_prefill_chunk:
            return []
        return [SAMPLED]


def _config(folder: Path) -> VllmConfig:
    settings = ConnectorSettings(
        news_url="inproc://nowhere-news",
        control_url="inproc://nowhere-control",
        store_capacity_tokens=STORE_TOKENS,
        prefix_ratio=0.5,
        page_tokens=PAGE_TOKENS,
        max_recomputed_tokens_per_step=MAX_RECOMPUTED_TOKENS,
    )
    config = _base_config(folder)
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="NebulaConnector",
        kv_connector_module_path="pic_worker.adapters.vllm.connector",
        kv_role="kv_both",
        kv_connector_extra_config={ORDER_KEY: {name: getattr(settings, name) for name in settings.__struct_fields__}},
    )
    return config


@cache
def _base_config(folder: Path) -> VllmConfig:
    write_tiny_model(folder, tokenizer_folder=packaged_folder())
    config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=MAX_TOKENS,
        max_num_batched_tokens=MAX_BATCH_TOKENS,
        max_num_seqs=4,
        block_size=32,
    ).create_engine_config()
    config.cache_config.block_size = BLOCK_TOKENS
    config.cache_config.num_gpu_blocks = NUM_DEVICE_BLOCKS
    config.scheduler_config.disable_hybrid_kv_cache_manager = True
    return config


def _cache_config() -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return KVCacheConfig(
        num_blocks=NUM_DEVICE_BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )


@cache
def _block_hasher() -> Any:
    init_none_hash(sha256)
    return get_request_block_hasher(BLOCK_TOKENS, sha256)
