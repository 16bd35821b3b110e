"""How the transfer of one segment ended."""

from enum import StrEnum
from typing import assert_never

from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason


class TransferOutcome(StrEnum):
    FETCHED = "fetched"
    JOINED = "joined"
    """It was still being computed or fetched at its source."""
    HELPED = "helped"
    """Its source computed it for this very request."""
    ALREADY_HERE = "already_here"
    """Another request had brought or computed it meanwhile."""
    NOT_THERE = "not_there"
    SOURCE_GONE = "source_gone"
    LATE = "late"
    VETO = "veto"
    TOKENS_DIFFER = "tokens_differ"
    DOMAIN_DIFFERS = "domain_differs"
    DAMAGED = "damaged"
    NO_ROOM = "no_room"


def outcome_of(end: Source | FallbackReason) -> TransferOutcome:
    """By what was done, or why nothing was."""
    if isinstance(end, FallbackReason):
        return TransferOutcome(end.value)
    match end:
        case Source.FETCH:
            return TransferOutcome.FETCHED
        case Source.JOIN:
            return TransferOutcome.JOINED
        case Source.COMPUTE_AT:
            return TransferOutcome.HELPED
        case Source.LOCAL | Source.COMPUTE:
            return TransferOutcome.ALREADY_HERE
        case _:
            assert_never(end)
