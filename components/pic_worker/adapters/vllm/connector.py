"""vLLM's view of Nebula: a KV connector, one object in the scheduler's process and one in each rank."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.forward_context import ForwardContext
from vllm.v1.attention.backend import AttentionMetadata
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from pic_worker.adapters.vllm.control_desk import ControlDesk
from pic_worker.adapters.vllm.engine_wire import ORDER_KEY, ConnectorSettings
from pic_worker.adapters.vllm.kv_group_refusals import kv_group_refusals
from pic_worker.adapters.vllm.news_socket import NewsSocket
from pic_worker.adapters.vllm.orders import StepOrders, StepReport
from pic_worker.adapters.vllm.rank_half import RankHalf
from pic_worker.adapters.vllm.scheduler_half import SchedulerHalf


class NebulaConnector(KVConnectorBase_V1):
    """Passes each call on to the half that this object has; vLLM calls only those of its role."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        """
        Raises:
            msgspec.ValidationError: the connector's settings are missing or wrong.
            ValueError: reuse cannot work with the model's KV cache, or the settings do not fit it.
        """
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        if refusals := kv_group_refusals(kv_cache_config.kv_cache_groups):
            raise ValueError("; ".join(refusals))
        settings = _settings(self._kv_transfer_config.kv_connector_extra_config)
        self._scheduler_half: SchedulerHalf | None = None
        self._rank_half: RankHalf | None = None
        self._desk: ControlDesk | None = None
        self._lock = threading.Lock()
        """Held by whoever is in the scheduler half: vLLM's scheduler, or the thread of the control desk."""
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler_half = SchedulerHalf(
                settings,
                block_size_tokens=_block_size_tokens(kv_cache_config),
                news=NewsSocket(settings.news_url),
                clock=time.monotonic,
            )
            self._desk = ControlDesk(settings.control_url, self._scheduler_half, self._lock)
        else:
            self._rank_half = RankHalf(vllm_config, kv_cache_config, settings)

    @property
    def requires_kv_delivery(self) -> bool:
        """False: what is not saved is found missing later, and no request waits for it."""
        return False

    def shutdown(self) -> None:
        if self._desk is not None:
            self._desk.close()
            self._desk = None
        if self._scheduler_half is not None:
            self._scheduler_half.shutdown()
        if self._rank_half is not None:
            self._rank_half.shutdown()

    # ---- in the scheduler ----

    @property
    def scheduler_half(self) -> SchedulerHalf:
        if self._scheduler_half is None:
            raise _wrong_role("scheduler")
        return self._scheduler_half

    @property
    def control_desk(self) -> ControlDesk:
        if self._desk is None:
            raise _wrong_role("scheduler")
        return self._desk

    @contextmanager
    def _entered(self) -> Iterator[SchedulerHalf]:
        with self._lock:
            yield self.scheduler_half

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        with self._entered() as half:
            half.bind_block_pool(gpu_block_pool)

    def on_new_request(self, request: Request) -> None:
        with self._entered() as half:
            half.begin_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        with self._entered() as half:
            return half.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        with self._entered() as half:
            half.allocate(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepOrders:
        with self._entered() as half:
            return half.build_orders(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        # Ranks always report: a step without their word is no step of this connector.
        if isinstance(report, StepReport):
            with self._entered() as half:
                half.finish_step(report)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, object] | None]:
        with self._entered() as half:
            half.end_request(request, block_ids)
        return False, None

    def reset_cache(self) -> bool:
        with self._entered() as half:
            half.reset()
        return True

    # ---- in a rank ----

    @property
    def rank_half(self) -> RankHalf:
        if self._rank_half is None:
            raise _wrong_role("rank")
        return self._rank_half

    def bind_runner(self, model_runner: object) -> None:
        """Called by the worker class once the KV caches are there, with vLLM's model runner of either generation."""
        self.rank_half.bind_runner(model_runner)

    def arena_facts(self) -> tuple[str, int]:
        """Path of this rank's part of the store, and bytes of its pages."""
        return self.rank_half.arena_path, self.rank_half.page_bytes

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.rank_half.register_kv_caches(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self.rank_half.save_blocks(_orders(kv_connector_metadata))

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: object) -> None:
        self.rank_half.load(_orders(self._get_connector_metadata()))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is under way: loads are done when `start_load_kv` returns."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: object
    ) -> None:
        """Nothing: what a step completes is saved behind it."""

    def wait_for_save(self) -> None:
        self.rank_half.save_segments(_orders(self._get_connector_metadata()))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self.rank_half.take_received() or None

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata:
        # An empty report too: it says that the step is done.
        return self.rank_half.take_report() or StepReport()


def _settings(extra_config: Mapping[str, object]) -> ConnectorSettings:
    return msgspec.convert(extra_config.get(ORDER_KEY), ConnectorSettings)


def _block_size_tokens(kv_cache_config: KVCacheConfig) -> int:
    (group,) = kv_cache_config.kv_cache_groups
    block_size_tokens: int = group.kv_cache_spec.block_size
    return block_size_tokens


def _orders(metadata: KVConnectorMetadata) -> StepOrders:
    if not isinstance(metadata, StepOrders):
        raise TypeError(f"orders of another connector: {type(metadata).__name__}")
    return metadata


def _wrong_role(wanted: str) -> RuntimeError:
    return RuntimeError(f"a call for the {wanted} half came to the other one")
