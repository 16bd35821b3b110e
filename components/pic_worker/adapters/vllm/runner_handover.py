"""Gives the model runner to the connector, which has no other way to it."""

from typing import Any, Protocol, runtime_checkable

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector


@runtime_checkable
class TakesRunner(Protocol):
    """A connector that runs the model."""

    def bind_runner(self, model_runner: Any) -> None: ...


def hand_over(model_runner: Any) -> None:
    """Gives the runner to each connector of this process that takes it, also inside a MultiConnector."""
    if has_kv_transfer_group():
        for connector in _connectors(get_kv_transfer_group()):
            if isinstance(connector, TakesRunner):
                connector.bind_runner(model_runner)


def _connectors(group: Any) -> list[Any]:
    return list(group._connectors) if isinstance(group, MultiConnector) else [group]
