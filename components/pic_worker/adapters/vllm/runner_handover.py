"""Gives the model runner to the connector, which has no other way to it, and asks the connector where its memory is."""

from typing import Any, Protocol, runtime_checkable

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector


@runtime_checkable
class TakesRunner(Protocol):
    """A connector that runs the model."""

    def bind_runner(self, model_runner: Any) -> None: ...


@runtime_checkable
class KeepsPages(Protocol):
    """A connector with a store."""

    def arena_facts(self) -> tuple[str, int]: ...


def hand_over(model_runner: Any) -> None:
    """Gives the runner to each connector of this process that takes it, also inside a MultiConnector."""
    if has_kv_transfer_group():
        for connector in _connectors(get_kv_transfer_group()):
            if isinstance(connector, TakesRunner):
                connector.bind_runner(model_runner)


def find_arena() -> tuple[str, int] | None:
    """Path of this rank's arena, and bytes of its pages; None where no connector of this process has one."""
    if has_kv_transfer_group():
        for connector in _connectors(get_kv_transfer_group()):
            if isinstance(connector, KeepsPages):
                return connector.arena_facts()
    return None


def _connectors(group: Any) -> list[Any]:
    return list(group._connectors) if isinstance(group, MultiConnector) else [group]
