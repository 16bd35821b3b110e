"""A full state in messages of bounded size."""

from collections.abc import Iterator

from nebula_protocol.card import WorkerCard
from nebula_protocol.messages import StateChunk
from pic_worker.core.event_log import StateSnapshot

# At about 30 bytes a block and 70 a segment, far below NATS's default limit of 1 MiB a message.
_ENTRIES_PER_CHUNK = 8192


def chunk_state(state: StateSnapshot, card: WorkerCard, *, snapshot_id: int) -> Iterator[StateChunk]:
    """At least one chunk; blocks and segments each in the snapshot's order, so that parents stay before children."""
    num_entries = max(len(state.blocks), len(state.segments), 1)
    starts = range(0, num_entries, _ENTRIES_PER_CHUNK)
    for index, start in enumerate(starts):
        yield StateChunk(
            snapshot_id=snapshot_id,
            index=index,
            last=index == len(starts) - 1,
            card=card,
            last_event_ids=state.last_event_ids,
            blocks=state.blocks[start : start + _ENTRIES_PER_CHUNK],
            segments=state.segments[start : start + _ENTRIES_PER_CHUNK],
        )
