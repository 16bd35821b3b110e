"""Questions of the worker's process about the store, and the answers of the connector; both over the control socket.

Between two processes of one version: the values of the `Catalogue` port travel as they are.
"""

import msgspec

from pic_worker.adapters.vllm.engine_wire import EngineControl
from pic_worker.catalogue import IncomingSegment, Lease, ReservationId, Reserved, Unreserved
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.store_entry import SegmentKey


class LeaseCall(msgspec.Struct, frozen=True, kw_only=True, tag="lease"):
    call_id: int
    keys: tuple[SegmentKey, ...]


class ReleaseCall(msgspec.Struct, frozen=True, kw_only=True, tag="release"):
    call_id: int
    lease_id: LeaseId


class ReserveCall(msgspec.Struct, frozen=True, kw_only=True, tag="reserve"):
    call_id: int
    segments: tuple[IncomingSegment, ...]


class ConfirmCall(msgspec.Struct, frozen=True, kw_only=True, tag="confirm"):
    call_id: int
    reservation_id: ReservationId


class CancelCall(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    call_id: int
    reservation_ids: tuple[ReservationId, ...]


class DropCall(msgspec.Struct, frozen=True, kw_only=True, tag="drop"):
    call_id: int
    keys: tuple[SegmentKey, ...]


CatalogueCall = LeaseCall | ReleaseCall | ReserveCall | ConfirmCall | CancelCall | DropCall
ControlMessage = EngineControl | CatalogueCall


class Leased(msgspec.Struct, frozen=True, kw_only=True, tag="leased"):
    call_id: int
    lease: Lease


class RoomMade(msgspec.Struct, frozen=True, kw_only=True, tag="room"):
    call_id: int
    room: tuple[Reserved | Unreserved, ...]


class Confirmed(msgspec.Struct, frozen=True, kw_only=True, tag="confirmed"):
    call_id: int
    lease_id: LeaseId


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    call_id: int


class CallFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    call_id: int
    reason: str


CatalogueReply = Leased | RoomMade | Confirmed | Done | CallFailed
