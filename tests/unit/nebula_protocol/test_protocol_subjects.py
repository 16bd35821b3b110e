import pytest

from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import WorkerId
from nebula_protocol.subjects import (
    Topic,
    all_event_subjects,
    control_subject,
    event_subject,
    peer_subject,
    state_subject,
    topic_of,
)


@pytest.mark.parametrize("topic", Topic)
def test_a_topic_comes_back_from_its_subject(topic: Topic) -> None:
    assert topic_of(event_subject("nebula_pool", "prefill", "generate", topic)) is topic


def test_prefix_block_events_are_where_dynamo_publishes_them() -> None:
    expected = "namespace.nebula_pool.component.prefill.endpoint.generate.kv-events"
    assert event_subject("nebula_pool", "prefill", "generate", Topic.KV_EVENTS) == expected


def test_a_wildcard_has_a_part_for_each_of_a_subjects_names() -> None:
    subject, wildcard = event_subject("n", "c", "e", Topic.DECISIONS), all_event_subjects(Topic.DECISIONS)
    pairs = zip(subject.split("."), wildcard.split("."), strict=True)
    assert all(pattern in (part, "*") for part, pattern in pairs)
    assert wildcard.count("*") == 3


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "kv-events",
        "namespace.n.component.c.endpoint.e.kv_metrics",
        "namespace.n.component.c.endpoint.e.f.kv-events",
        "nebula.n.worker.1.state.x.kv-events",
    ],
)
def test_other_subjects_have_no_topic(subject: str) -> None:
    with pytest.raises(DecodeError):
        topic_of(subject)


def test_every_worker_has_its_own_subjects_for_every_kind_of_call() -> None:
    makers = (state_subject, peer_subject, control_subject)
    subjects = {make(namespace, WorkerId(i)) for make in makers for namespace in ("a", "b") for i in (1, 2)}
    # 3 kinds of call, 2 namespaces, 2 workers.
    assert len(subjects) == 12
