"""One vLLM engine in this process, with our connector, as the quality benchmark needs it.

Call `environment.prepare_environment` before this module is imported.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq
from vllm import EngineArgs, SamplingParams
from vllm.config import KVTransferConfig, VllmConfig
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.engine.llm_engine import LLMEngine

from nebula_bench.adapters.vllm.first_logits import CAPTURE_KEY, capture_first_logits
from nebula_bench.errors import BenchError
from nebula_bench.quality.engine import Answer, Call, Logits, Mode
from nebula_protocol.hashing import hash_segments
from nebula_protocol.ids import DomainId, RequestId
from nebula_protocol.plan import SegmentPlan, Source
from nebula_protocol.tokens import as_token_array
from pic_worker.adapters.vllm.engine_wire import (
    ORDER_KEY,
    ConnectorSettings,
    EngineNews,
    PrefillFacts,
    PrefillKind,
    PrefillOrder,
    transfer_params,
)
from pic_worker.adapters.vllm.sockets import SocketFolder

_BLOCK_TOKENS = 128
_FACTS_TIMEOUT_S = 30.0
_SPARE_TOKENS = 64
_DEFAULT_DTYPE = "auto"


@dataclass(frozen=True, slots=True)
class EngineSize:
    """What must fit: every call of a batch at once, so that none is preempted, and all segments of a prompt."""

    longest_tokens: int
    """Of a call, its answer included. Prompts are computed in one step each."""
    most_calls: int
    """Side by side."""
    shelf_tokens: int
    """Of all segments that must be kept at the same time."""


class VllmQualityEngine:
    """`QualityEngine`. Use `open_engine`."""

    def __init__(self, engine: LLMEngine, news: "zmq.Socket[bytes]", logits: dict[str, Logits]) -> None:
        self._engine = engine
        self._news = news
        self._logits = logits
        self._names = (f"call-{number}" for number in itertools.count())
        self._decoder = msgspec.msgpack.Decoder(EngineNews)

    def run(self, calls: Sequence[Call]) -> list[Answer]:
        names = [next(self._names) for _ in calls]
        for name, call in zip(names, calls, strict=True):
            self._submit(name, call)
        tokens: dict[str, tuple[int, ...]] = {}
        for piece_tokens in (call.first_piece_tokens for call in calls if call.first_piece_tokens is not None):
            self._compute_first(piece_tokens)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if isinstance(output, RequestOutput) and output.finished:
                    tokens[output.request_id] = tuple(output.outputs[0].token_ids)
        facts = self._take_facts({name for name, call in zip(names, calls, strict=True) if call.mode is not Mode.EXACT})
        return [_answer(tokens[name], self._logits.pop(name), facts.get(name)) for name in names]

    def _compute_first(self, num_tokens: int) -> None:
        """A step that is cut short; the engine runs in this process."""
        scheduler = self._engine.engine_core.engine_core.scheduler  # type: ignore[attr-defined]
        budget_tokens = scheduler.max_num_scheduled_tokens
        scheduler.max_num_scheduled_tokens = num_tokens
        try:
            self._engine.step()
        finally:
            scheduler.max_num_scheduled_tokens = budget_tokens

    def _submit(self, name: str, call: Call) -> None:
        order = None if call.mode is Mode.EXACT else _order(name, call)
        extra: dict[str, object] = {CAPTURE_KEY: name}
        if order is not None:
            extra["kv_transfer_params"] = transfer_params(order)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=call.num_tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args=extra,
        )
        # A salt of its own: no prefix block is shared, so every call computes what its mode says.
        prompt = TokensPrompt(prompt_token_ids=list(call.tokens), cache_salt=name)
        self._engine.add_request(name, prompt, params)

    def _take_facts(self, wanted: set[str]) -> dict[str, PrefillFacts]:
        """
        Raises:
            BenchError: the connector does not tell what became of a call.
        """
        found: dict[str, PrefillFacts] = {}
        deadline_s = time.monotonic() + _FACTS_TIMEOUT_S
        while missing := wanted - found.keys():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._news.poll(max(1, round(left_s * 1e3))):
                raise BenchError(f"the connector says nothing about {len(missing)} of {len(wanted)} requests")
            news = self._decoder.decode(self._news.recv())
            found |= {facts.request_id: facts for facts in news.finished}
        return found


@contextmanager
def open_engine(model: Path, size: EngineSize, dtype: str = _DEFAULT_DTYPE) -> Iterator[VllmQualityEngine]:
    """An engine that has started; half a minute."""
    sockets = SocketFolder.make()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine: LLMEngine | None = None
    try:
        news, control = context.socket(zmq.PULL), context.socket(zmq.DEALER)
        news.set_hwm(0)
        news.bind(sockets.news_url)
        control.bind(sockets.control_url)
        logits: dict[str, Logits] = {}
        config = _engine_args(model, size, dtype, sockets, logits).create_engine_config()
        config.cache_config.kv_cache_memory_bytes = _kv_bytes(config, size)
        engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
        yield VllmQualityEngine(engine, news, logits)
    finally:
        if engine is not None:
            engine.engine_core.shutdown()
        context.destroy(linger=0)
        sockets.remove()


def _engine_args(
    model: Path, size: EngineSize, dtype: str, sockets: SocketFolder, logits: dict[str, Logits]
) -> EngineArgs:
    length = _round_up(size.longest_tokens + _SPARE_TOKENS, _BLOCK_TOKENS)
    connector = ConnectorSettings(
        news_url=sockets.news_url,
        control_url=sockets.control_url,
        store_capacity_tokens=_round_up(size.shelf_tokens, _BLOCK_TOKENS),
        prefix_ratio=0.0,
        max_recomputed_tokens_per_step=length,
    )
    transfer = KVTransferConfig(
        kv_connector="NebulaConnector",
        kv_connector_module_path="pic_worker.adapters.vllm.connector",
        kv_role="kv_both",
        kv_connector_extra_config={ORDER_KEY: msgspec.to_builtins(connector)},
    )
    return EngineArgs(
        model=str(model),
        dtype=dtype,  # type: ignore[arg-type]
        skip_tokenizer_init=True,
        enforce_eager=True,
        async_scheduling=False,
        max_model_len=length,
        max_num_batched_tokens=length,
        max_num_seqs=size.most_calls,
        block_size=_BLOCK_TOKENS,
        enable_prefix_caching=True,
        kv_transfer_config=transfer,
        worker_cls=_worker_class(),
        logits_processors=[capture_first_logits(logits.__setitem__)],
    )


def _worker_class() -> str:
    return f"pic_worker.adapters.vllm.worker_class.{'PicCpuWorker' if current_platform.is_cpu() else 'PicGpuWorker'}"


def _kv_bytes(config: VllmConfig, size: EngineSize) -> int:
    """Of a paged cache for all calls at once, and the block that vLLM keeps for itself."""
    model = config.model_config
    num_layers = model.get_num_layers(config.parallel_config)
    numbers = 2 * num_layers * model.get_num_kv_heads(config.parallel_config) * model.get_head_size()
    num_tokens = _BLOCK_TOKENS + size.most_calls * model.max_model_len
    return num_tokens * numbers * kv_cache_dtype_str_to_dtype(config.cache_config.cache_dtype, model).itemsize


def _order(name: str, call: Call) -> PrefillOrder:
    hashes = hash_segments(as_token_array(call.tokens), call.spans)
    source = Source.LOCAL if call.mode is Mode.REUSE else Source.COMPUTE
    return PrefillOrder(
        request_id=RequestId(name),
        kind=PrefillKind.ALONE if call.mode is Mode.LEND_ALONE else PrefillKind.PROMPT,
        domain_id=DomainId(call.shelf),
        lineage=name,
        segments=tuple(
            SegmentPlan(start=start, end=end, segment_hash=segment_hash, source=source)
            for (start, end), segment_hash in zip(call.spans, hashes, strict=True)
        ),
        fusion=call.fusion,
        has_plan=True,
        may_reuse=call.mode is Mode.REUSE,
    )


def _answer(token_ids: tuple[int, ...], logits: Logits, facts: PrefillFacts | None) -> Answer:
    segments = () if facts is None else facts.segments
    return Answer(
        token_ids=token_ids,
        logits=logits,
        reused_tokens=sum(segment.loaded_tokens for segment in segments),
        recomputed_tokens=sum(segment.recomputed_tokens for segment in segments),
    )


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
