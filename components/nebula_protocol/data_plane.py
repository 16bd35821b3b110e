"""How workers copy segments from each other: what a source tells of itself, and the frames of its side channel.

A home connects to a source, both prove that they know the deployment's secret, and the home asks once. The source
offers what it has as it is decided; the home takes what it wants. When the connection ends, so does every lease on it.
"""

from enum import StrEnum

import msgspec

from nebula_protocol.ids import DomainId, Origin, RequestId, WorkerEpoch, WorkerId
from nebula_protocol.messages import WantedSegment

DATA_PLANE_VERSION = 1


class DataPlaneKind(StrEnum):
    """What moves the bytes."""

    TCP = "tcp"
    NIXL = "nixl"


class PageGeometry(msgspec.Struct, frozen=True, kw_only=True):
    """Pages are copied as they are, rank by rank: both sides must have the same."""

    page_tokens: int
    page_bytes: int
    """Of one rank."""
    num_ranks: int


class DataPlaneCard(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker gives segments away, and to whom: those with the same kind, domain and geometry."""

    version: int = DATA_PLANE_VERSION
    worker_id: WorkerId
    epoch: WorkerEpoch
    kind: DataPlaneKind
    host: str
    port: int
    domain_id: DomainId
    """Of the worker, without a tenant."""
    geometry: PageGeometry


# ---- the side channel, in the order in which frames come ----


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The home's first frame."""

    nonce: bytes
    home: DataPlaneCard


class Challenge(msgspec.Struct, frozen=True, kw_only=True, tag="challenge"):
    """The source proves itself first: a stranger learns nothing but a fresh number."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, kw_only=True, tag="proof"):
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    source: DataPlaneCard
    num_pages: int
    """Of each rank."""
    attachment: bytes = b""
    """What the kind of transport needs to know beyond this."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    reason: str


class AskSegments(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Once on a connection. Segments are named by their place in it from here on."""

    request_id: RequestId
    domain_id: DomainId
    """Of the worker and the request's tenant."""
    wait_s: float
    """How long joined segments are waited for."""
    segments: tuple[WantedSegment, ...]


class SegmentOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The source has the segment and holds it until the connection, or the lease, ends."""

    index: int
    token_bytes: bytes
    """The ids it was computed from."""
    origin: Origin
    stored_position: int
    """Position that its first key is rotated to."""
    pages: tuple[int, ...]
    """Where it lies in each of the source's ranks."""


class Offers(msgspec.Struct, frozen=True, kw_only=True, tag="offers"):
    """Those decided since the last frame."""

    there: tuple[SegmentOffer, ...] = ()
    absent: tuple[int, ...] = ()
    is_last: bool = False
    """Everything is decided."""


class TakeSegments(msgspec.Struct, frozen=True, kw_only=True, tag="take"):
    """The home has room for these now. They are sent, or where the home reads by itself, digested."""

    indices: tuple[int, ...]


class PagesFollow(msgspec.Struct, frozen=True, kw_only=True, tag="pages"):
    """Right behind it, without frames, come the segment's pages, rank by rank."""

    index: int


class PagesSent(msgspec.Struct, frozen=True, kw_only=True, tag="sent"):
    """The lease was good until here, so the digests are of the segment and of nothing else."""

    index: int
    digests: tuple[int, ...]
    """XXH3-64 of its pages one behind another, of each rank."""


class PagesLost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """The lease had ended: whatever came of this segment is to be thrown away."""

    index: int


HomeFrame = Hello | Proof | AskSegments | TakeSegments
SourceFrame = Challenge | Welcome | Refused | Offers | PagesFollow | PagesSent | PagesLost


class LocateData(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a worker for its card of the data plane."""

    version: int = 1


class DataLocated(msgspec.Struct, frozen=True, kw_only=True):
    """No card: the worker copies nothing to others."""

    version: int = 1
    card: DataPlaneCard | None
