"""What a call to the engine has caused: everything its driver must publish, ask for, send or answer."""

from dataclasses import dataclass
from typing import NewType

from nebula_protocol.events import (
    BlocksRemoved,
    BlocksStored,
    KvEvent,
    KvEventData,
    PicEvent,
    StoredBlock,
)
from nebula_protocol.ids import (
    BlockHash,
    DomainId,
    DpRank,
    EngineBlockHash,
    EventId,
    RequestId,
    WorkerWithDpRank,
)
from nebula_protocol.messages import FetchedSegment, WantedSegment
from nebula_protocol.receipt import Receipt
from nebula_protocol.tokens import TokenArray
from pic_worker.core.stream import Production

TicketId = NewType("TicketId", int)
"""Names one peer's fetch while it is served; chosen by the driver, never used twice."""


@dataclass(frozen=True, slots=True)
class KvStored:
    """A run of blocks of one chain entered the device tier."""

    event_id: EventId
    lineage: str
    parent_hash: EngineBlockHash | None
    """Engine hash of the block before the first; None at the start of a prompt."""
    block_hashes: tuple[EngineBlockHash, ...]
    tokens_hashes: tuple[BlockHash, ...]
    tokens: TokenArray
    """Of all these blocks."""


@dataclass(frozen=True, slots=True)
class KvRemoved:
    """Blocks left the device tier."""

    event_id: EventId
    block_hashes: tuple[EngineBlockHash, ...]


DeviceEvent = KvStored | KvRemoved
WorkerEvent = DeviceEvent | PicEvent
"""Device events go to kv-events, `PicEvent` to pic-events; ids are consecutive per topic."""


def kv_event_of(event: DeviceEvent, dp_rank: DpRank) -> KvEvent:
    """The event as Dynamo's publisher puts it on the wire."""
    match event:
        case KvStored():
            blocks = tuple(map(_stored_block, event.block_hashes, event.tokens_hashes))
            data = KvEventData(stored=BlocksStored(parent_hash=event.parent_hash, blocks=blocks))
            return KvEvent(event_id=event.event_id, dp_rank=dp_rank, data=data)
        case KvRemoved():
            data = KvEventData(removed=BlocksRemoved(block_hashes=event.block_hashes))
            return KvEvent(event_id=event.event_id, dp_rank=dp_rank, data=data)


def _stored_block(block_hash: EngineBlockHash, tokens_hash: BlockHash) -> StoredBlock:
    return StoredBlock(block_hash=block_hash, tokens_hash=tokens_hash)


@dataclass(frozen=True, slots=True)
class FetchCommand:
    """Ask a peer for segments; report each one with `SimEngine.fetch_finished`, once, whatever became of it."""

    request_id: RequestId
    from_worker: WorkerWithDpRank
    domain_id: DomainId
    wait_s: float
    """The peer may take this long to decide."""
    segments: tuple[WantedSegment, ...]


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """The answer to a peer's fetch, in the order asked. Send it after the transfer of `kv_bytes`, then close it."""

    ticket: TicketId
    segments: tuple[FetchedSegment, ...]
    kv_bytes: int
    production: Production | None = None
    """The step that computes the last of them; None when all are there."""


@dataclass(frozen=True, slots=True)
class FinishedPrefill:
    receipt: Receipt
    is_helper: bool

    @property
    def request_id(self) -> RequestId:
        return self.receipt.request_id


@dataclass(frozen=True, slots=True)
class Effects:
    """Carry out in any order among the fields, in the given order within each."""

    events: tuple[WorkerEvent, ...] = ()
    fetches: tuple[FetchCommand, ...] = ()
    answers: tuple[FetchAnswer, ...] = ()
    finished: tuple[FinishedPrefill, ...] = ()


NOTHING = Effects()
