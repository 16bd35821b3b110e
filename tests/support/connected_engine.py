"""A tiny model in vLLM with the connector, in this process: tests drive the engine step by step and see its news."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import zmq
from support.segment_plans import segments_of

from nebula_protocol.fusion import FULL_FUSION, Fusion
from nebula_protocol.ids import DomainId, RequestId
from nebula_serve.sim_model.model_folder import packaged_folder
from pic_worker.adapters.vllm.engine_wire import (
    ORDER_KEY,
    ConnectorSettings,
    EngineControl,
    EngineNews,
    PrefillFacts,
    PrefillKind,
    PrefillOrder,
    transfer_params,
)

MAX_BATCH_TOKENS = 256
BLOCK_TOKENS = 32
PAGE_TOKENS = 16
NUM_DEVICE_BLOCKS = 48
"""One is vLLM's own; the longest prompt needs 32."""
STORE_TOKENS = 4096
MAX_RECOMPUTED_TOKENS = 96
"""Fewer than a batch, so that a load of a few hundred tokens goes over steps."""
DOMAIN = DomainId("tiny")
NUM_LOGPROBS = 5
_TIMEOUT_MS = 5_000


@dataclass
class Answer:
    """What came of one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    """Of the most likely tokens, per answer token."""
    is_finished: bool = False


@dataclass
class ConnectedEngine:
    engine: Any
    """vLLM's `LLMEngine`."""
    news_socket: zmq.Socket[bytes]
    control_socket: zmq.Socket[bytes]
    answers: dict[str, Answer] = field(default_factory=dict)
    news: list[EngineNews] = field(default_factory=list)
    _num_requests: int = 0

    # ---- inside ----

    @property
    def core(self) -> Any:
        return self.engine.engine_core.engine_core

    @property
    def scheduler_half(self) -> Any:
        return self.core.scheduler.connector.scheduler_half

    # ---- requests ----

    def add(
        self,
        tokens: Sequence[int],
        spans: Sequence[tuple[int, int]] = (),
        *,
        fusion: Fusion = FULL_FUSION,
        salt: str | None = None,
        kind: PrefillKind = PrefillKind.PROMPT,
        has_order: bool = True,
        num_answer_tokens: int = 1,
        **order: Any,
    ) -> str:
        """Hands a request to the engine; with an order unless told otherwise. Returns its name."""
        from vllm import SamplingParams

        self._num_requests += 1
        name = f"request-{self._num_requests}"
        params: dict[str, object] = {}
        if has_order:
            params = transfer_params(
                PrefillOrder(
                    request_id=RequestId(name),
                    kind=kind,
                    domain_id=DOMAIN,
                    lineage=salt or "",
                    segments=segments_of(tokens, spans),
                    fusion=fusion,
                    **order,
                )
            )
        sampling = SamplingParams(
            max_tokens=num_answer_tokens,
            temperature=0.0,
            ignore_eos=True,
            logprobs=NUM_LOGPROBS,
            extra_args={"kv_transfer_params": params},
        )
        prompt: dict[str, object] = {"prompt_token_ids": list(tokens)}
        if salt:
            prompt["cache_salt"] = salt
        self.engine.add_request(name, prompt, sampling)
        self.answers[name] = Answer()
        return name

    def abort(self, name: str) -> None:
        self.engine.abort_request([name])

    def step(self) -> None:
        for output in self.engine.step():
            answer = self.answers[output.request_id]
            completion = output.outputs[0]
            answer.token_ids = list(completion.token_ids)
            answer.logprobs = [{t: p.logprob for t, p in each.items()} for each in completion.logprobs or ()]
            answer.is_finished = output.finished
        self.read_news(0)

    def finish(self) -> None:
        """Steps until nothing is left to do, the freeing of aborted requests' blocks included."""
        while self.core.scheduler.has_requests():
            self.step()

    def run(self, tokens: Sequence[int], spans: Sequence[tuple[int, int]] = (), **options: Any) -> "Ran":
        """One request by itself, from beginning to end."""
        name = self.add(tokens, spans, **options)
        self.finish()
        facts = self.facts(name) if options.get("has_order", True) else None
        return Ran(name, self.answers[name], facts)

    # ---- news ----

    def facts(self, name: str) -> PrefillFacts:
        while True:
            for news in self.news:
                for facts in news.finished:
                    if facts.request_id == name:
                        return facts
            self.read_news(_TIMEOUT_MS)

    def read_news(self, timeout_ms: int) -> None:
        if timeout_ms and not self.news_socket.poll(timeout_ms):
            raise TimeoutError("the connector tells no more")
        while self.news_socket.poll(0):
            self.news.append(msgspec.msgpack.decode(self.news_socket.recv(), type=EngineNews))

    def control(self, control: EngineControl) -> None:
        self.control_socket.send(msgspec.msgpack.encode(control))

    # ---- KV ----

    def request_of(self, name: str) -> Any | None:
        """vLLM's own object, by a name to which the engine has added something; None once it is gone."""
        requests = self.core.scheduler.requests
        return next((request for key, request in requests.items() if key.startswith(f"{name}-")), None)

    def run_for_kv(self, tokens: Sequence[int], spans: Sequence[tuple[int, int]] = (), **options: Any) -> "Ran":
        """Like `run`, and reads the KV of the prompt when its first answer token is there."""
        name = self.add(tokens, spans, num_answer_tokens=2, **options)
        block_ids: list[int] = []
        while not self.answers[name].token_ids:
            self.step()
            request = self.request_of(name)
            if request is not None:
                (block_ids,) = self.core.scheduler.kv_cache_manager.get_block_ids(request.request_id)
        kv = self.read_kv(block_ids, len(tokens))
        self.finish()
        return Ran(name, self.answers[name], self.facts(name), kv)

    def read_kv(self, block_ids: Sequence[int], num_tokens: int) -> "Kv":
        """Of the leading tokens in these blocks."""
        kv: Kv = self.core.model_executor.collective_rpc(_read_kv, args=(tuple(block_ids), num_tokens))
        return kv

    # ---- between tests ----

    def reset(self) -> None:
        """Nothing is cached any more, on the device or in the store."""
        self.finish()
        assert self.core.scheduler.reset_prefix_cache(reset_connector=True)
        self.read_news(0)
        self.news.clear()

    def assert_nothing_in_use(self) -> None:
        """No request, pin, reservation or block is left behind."""
        half = self.scheduler_half
        catalogue = half.catalogue
        assert (half.num_requests, catalogue.pinned_tokens, catalogue.num_reserved) == (0, 0, 0)
        free_tokens = catalogue.num_free_pages * PAGE_TOKENS
        assert free_tokens + catalogue.used_tokens == STORE_TOKENS
        # One block is vLLM's own.
        assert self.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == NUM_DEVICE_BLOCKS - 1


Kv = list[list[tuple[torch.Tensor, torch.Tensor]]]
"""Keys and values by rank and layer, each [tokens, heads, dimension]."""


def _read_kv(worker: Any, block_ids: Sequence[int], num_tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Runs in a rank."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    connector: Any = get_kv_transfer_group()
    kv = connector.rank_half._bound.kv
    return [kv.read(layer, block_ids, 0, num_tokens) for layer in range(kv.num_layers)]


def assert_same_kv(left: Kv | None, right: Kv | None) -> None:
    """Bit for bit."""
    assert left is not None
    assert right is not None
    for left_layers, right_layers in zip(left, right, strict=True):
        for layer, (ours, theirs) in enumerate(zip(left_layers, right_layers, strict=True)):
            for half, one, other in zip(("keys", "values"), ours, theirs, strict=True):
                differs = (one != other).flatten(1).any(1).nonzero().flatten().tolist()
                assert not differs, f"{half} of layer {layer} differ at {len(differs)} positions from {differs[0]}"


@dataclass(frozen=True)
class Ran:
    name: str
    answer: Answer
    facts: PrefillFacts | None
    kv: "Kv | None" = None

    @property
    def told(self) -> PrefillFacts:
        assert self.facts is not None
        return self.facts


@contextmanager
def connected_engine(folder: Path, *, tensor_parallel: int = 1, **engine_args: Any) -> Iterator[ConnectedEngine]:
    """Starts one, 20 s; `folder` takes the model."""
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from pic_worker.adapters.vllm.tiny_model import write_tiny_model

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="nebula-") as sockets:
        for name, value in _environment().items():
            patch.setenv(name, value)
        context = zmq.Context()
        settings = ConnectorSettings(
            news_url=f"ipc://{sockets}/news",
            control_url=f"ipc://{sockets}/control",
            store_capacity_tokens=STORE_TOKENS,
            prefix_ratio=0.5,
            page_tokens=PAGE_TOKENS,
            max_recomputed_tokens_per_step=MAX_RECOMPUTED_TOKENS,
        )
        news, control = context.socket(zmq.PULL), context.socket(zmq.DEALER)
        news.bind(settings.news_url)
        control.bind(settings.control_url)
        arguments: dict[str, Any] = {
            # What is compared bit for bit was computed in steps of different shape. A CPU without bfloat16
            # instructions rounds a product to bfloat16 differently with the number of its rows.
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 1024,
            "max_num_batched_tokens": MAX_BATCH_TOKENS,
            "max_num_seqs": 8,
            "block_size": BLOCK_TOKENS,
            "num_gpu_blocks_override": NUM_DEVICE_BLOCKS,
            "kv_cache_memory_bytes": 128 << 20,
            "skip_tokenizer_init": True,
            "worker_cls": "pic_worker.adapters.vllm.worker_class.PicCpuWorker",
            **engine_args,
        }
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(write_tiny_model(folder, tokenizer_folder=packaged_folder())),
                tensor_parallel_size=tensor_parallel,
                kv_transfer_config=_transfer_config(settings),
                **arguments,
            )
        )
        try:
            yield ConnectedEngine(engine, news, control)
        finally:
            engine.engine_core.shutdown()
            context.destroy(linger=0)
            _clean_up()


def _environment() -> Mapping[str, str]:
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "1",
    }


def _transfer_config(settings: ConnectorSettings) -> Any:
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="NebulaConnector",
        kv_connector_module_path="pic_worker.adapters.vllm.connector",
        kv_role="kv_both",
        kv_connector_extra_config={ORDER_KEY: msgspec.to_builtins(settings)},
    )


def _clean_up() -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()
