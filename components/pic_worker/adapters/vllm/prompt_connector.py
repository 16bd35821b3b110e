"""NIXL's connector from prefill to decode, as our workers need it."""

from contextlib import nullcontext
from typing import TYPE_CHECKING

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector
from vllm.v1.request import Request

from pic_worker.adapters.nixl.progress_pace import agents_sleep_when_idle
from pic_worker.adapters.vllm.handshake_listener import HandshakeListener

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

SPARES_CORES = "spares_cores"
"""Key in the connector's own configuration: where cores compute the model, none may be spent on polling."""
ANY_PORT = "any_port"
"""Key in it: the port of the environment may be left for another one."""


class PromptLender(NixlConnector):
    """Of a prefill worker."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        config = vllm_config.kv_transfer_config
        spares_cores = config is not None and config.get_from_extra_config(SPARES_CORES, False)
        with agents_sleep_when_idle() if spares_cores else nullcontext():
            super().__init__(vllm_config, role, kv_cache_config)
        if self.connector_scheduler is not None:
            any_port = config is not None and config.get_from_extra_config(ANY_PORT, False)
            HandshakeListener.install(self.connector_scheduler, any_port=any_port)


class PromptTaker(PromptLender):
    """Of a decode worker, where the prompt is longer than what was prefilled.

    NIXL's connector takes all of a request's prompt from the prefill worker. Here the prompt goes on with the answer's
    first token, which the prefill worker has sampled and the client has already: there is no KV of it, and where a
    block ends before it, there is no block to take it from.
    """

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        num_tokens, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        params = request.kv_transfer_params
        if not num_tokens or params is None:
            return num_tokens, is_async
        num_held = params.get("remote_num_tokens")
        if not isinstance(num_held, int):
            return num_tokens, is_async
        num_left = max(0, min(num_tokens, num_held - num_computed_tokens))
        return num_left, is_async and num_left > 0
