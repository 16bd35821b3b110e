"""A full state in several messages."""

import pytest
from support.worker_net import make_card

from nebula_protocol.codec import encode
from nebula_protocol.events import BlockEntry, SegmentEntry
from nebula_protocol.ids import BlockHash, DomainId, EngineBlockHash, EventId, Origin, SegmentHash, WorkerId
from nebula_protocol.messages import StateChunk
from nebula_protocol.subjects import Topic
from pic_worker.core.event_log import StateSnapshot
from pic_worker.state_chunks import chunk_state

CARD = make_card(WorkerId(1))
EVENT_IDS = {Topic.KV_EVENTS: EventId(12), Topic.PIC_EVENTS: EventId(-1)}
# The default of a NATS server.
MAX_MESSAGE_BYTES = 1 << 20
LARGEST = 2**63 - 1
TENANT = DomainId("0123456789abcdef/0123456789abcdef")


def snapshot(num_blocks: int, num_segments: int) -> StateSnapshot:
    """A chain of blocks, each the next one's parent, and segments; every number as long as it can be."""
    hashes = [EngineBlockHash(LARGEST - n) for n in range(num_blocks)]
    parents = [None, *hashes[:-1]]
    blocks = (BlockEntry(own, parent, BlockHash(LARGEST), 3) for own, parent in zip(hashes, parents, strict=False))
    segments = (
        SegmentEntry(SegmentHash(n.to_bytes(16, "big")), TENANT, 32_000, Origin.IN_CONTEXT) for n in range(num_segments)
    )
    return StateSnapshot(tuple(blocks), tuple(segments), EVENT_IDS)


def chunks_of(state: StateSnapshot) -> list[StateChunk]:
    return list(chunk_state(state, CARD, snapshot_id=5))


def test_an_empty_state_is_one_last_chunk() -> None:
    (chunk,) = chunks_of(snapshot(0, 0))
    assert (chunk.index, chunk.last, chunk.blocks, chunk.segments) == (0, True, (), ())


@pytest.mark.parametrize(
    ("num_blocks", "num_segments"), [(1, 0), (0, 1), (20_000, 3), (3, 20_000), (8192, 8192), (8193, 0)]
)
def test_a_state_of_any_size_is_whole_and_in_order(num_blocks: int, num_segments: int) -> None:
    state = snapshot(num_blocks, num_segments)
    chunks = chunks_of(state)
    assert [block for chunk in chunks for block in chunk.blocks] == list(state.blocks)
    assert [segment for chunk in chunks for segment in chunk.segments] == list(state.segments)
    assert all(chunk.blocks or chunk.segments for chunk in chunks)


def test_chunks_are_numbered_under_one_snapshot_id_and_only_the_last_says_so() -> None:
    chunks = chunks_of(snapshot(20_000, 9_000))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert {chunk.snapshot_id for chunk in chunks} == {5}


def test_every_chunk_carries_the_card_and_the_last_events_that_the_state_contains() -> None:
    chunks = chunks_of(snapshot(20_000, 0))
    assert len(chunks) > 1
    assert all(chunk.card == CARD and chunk.last_event_ids == EVENT_IDS for chunk in chunks)


def test_no_chunk_is_too_large_for_one_message() -> None:
    assert max(len(encode(chunk)) for chunk in chunks_of(snapshot(20_000, 20_000))) < MAX_MESSAGE_BYTES
