"""NATS subjects. Event topics are siblings of Dynamo's own `kv-events`, in the same envelope."""

from enum import StrEnum

from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import WorkerId

_EVENT_PARTS = 7


class Topic(StrEnum):
    KV_EVENTS = "kv-events"
    PIC_EVENTS = "pic-events"
    DECISIONS = "decisions"
    SPLITS = "splits"


def event_subject(namespace: str, component: str, endpoint: str, topic: Topic) -> str:
    return f"namespace.{namespace}.component.{component}.endpoint.{endpoint}.{topic}"


def all_event_subjects(topic: Topic) -> str:
    """A NATS wildcard for one topic of every namespace, component and endpoint."""
    return f"namespace.*.component.*.endpoint.*.{topic}"


def topic_of(subject: str) -> Topic:
    """The topic of an event subject.

    Raises:
        DecodeError: it is not an event subject of a known topic.
    """
    parts = subject.split(".")
    if len(parts) != _EVENT_PARTS or parts[0] != "namespace":
        raise DecodeError(f"{subject!r} is not an event subject")
    try:
        return Topic(parts[-1])
    except ValueError as error:
        raise DecodeError(f"{subject!r} has an unknown topic") from error


def state_subject(namespace: str, worker_id: WorkerId) -> str:
    """Where a worker answers requests for its full state."""
    return f"nebula.{namespace}.worker.{worker_id}.state"


def routers_subject(namespace: str) -> str:
    """Where the routers of a pool tell each other what they have dispatched and learned."""
    return f"nebula.{namespace}.routers"


def alive_subject(namespace: str, worker_id: WorkerId) -> str:
    """Where a worker answers at once with nothing; no responder means that its process is gone."""
    return f"nebula.{namespace}.worker.{worker_id}.alive"


def peer_subject(namespace: str, worker_id: WorkerId) -> str:
    """Where a worker answers other workers' requests for segments and prompt KV."""
    return f"nebula.{namespace}.worker.{worker_id}.peer"


def data_subject(namespace: str, worker_id: WorkerId) -> str:
    """Where a worker tells other workers how segments are copied from it."""
    return f"nebula.{namespace}.worker.{worker_id}.data"


def control_subject(namespace: str, worker_id: WorkerId) -> str:
    """Where a worker takes the router's instructions (capacity split)."""
    return f"nebula.{namespace}.worker.{worker_id}.control"
