"""Which events a reader wants to see."""

from dataclasses import dataclass

from nebula_cli.event_record import EventRecord, workers_of
from nebula_cli.request_name import is_named
from nebula_cli.worker_name import matches
from nebula_protocol.events import Decision
from nebula_protocol.subjects import Topic


@dataclass(frozen=True, slots=True)
class EventFilter:
    """What is empty or None lets everything pass."""

    topics: frozenset[Topic] = frozenset()
    worker: str | None = None
    """As `worker_name.matches` takes it; a decision passes when the worker is its target or one of its sources."""
    request: str | None = None
    """Beginning of a request's or its answer's id. Only decisions name a request."""
    namespaces: frozenset[str] = frozenset()

    def wanted_topics(self) -> frozenset[Topic]:
        wanted = self.topics or frozenset(Topic)
        return wanted if self.request is None else wanted & {Topic.DECISIONS}

    def lets_pass(self, record: EventRecord) -> bool:
        return (
            record.topic in self.wanted_topics()
            and (not self.namespaces or record.namespace in self.namespaces)
            and (self.worker is None or any(matches(worker_id, self.worker) for worker_id in workers_of(record)))
            and (self.request is None or _is_for_request(record, self.request))
        )


def _is_for_request(record: EventRecord, request: str) -> bool:
    return isinstance(record.body, Decision) and is_named(record.body.request_id, request)
