"""Identifiers that cross process boundaries. Distinct types so that one kind of hash is never taken for another."""

from enum import StrEnum
from typing import NewType

import msgspec

WorkerId = NewType("WorkerId", int)
"""A worker's id in discovery (Dynamo calls it the instance id)."""

DpRank = NewType("DpRank", int)
WorkerEpoch = NewType("WorkerEpoch", int)
"""Changes whenever the worker process starts anew; events of another epoch say nothing about this one."""

EventId = NewType("EventId", int)
"""Consecutive per (worker epoch, dp_rank, topic): from 1 on kv-events, which Dynamo numbers, from 0 on the others."""

RequestId = NewType("RequestId", str)
DomainId = NewType("DomainId", str)
SegmentHash = NewType("SegmentHash", bytes)
"""16 bytes over a segment's token ids. Discovers; the tokens verify."""

BlockHash = NewType("BlockHash", int)
"""64-bit hash of one block's own token ids, equal to Dynamo's `tokens_hash`."""

PrefixKey = NewType("PrefixKey", int)
"""64-bit key of a block together with everything before it. Nebula's own; never on the wire to engines."""

EngineBlockHash = NewType("EngineBlockHash", int)
"""The engine's own name of a cached block; meaningful only together with the worker that said it."""


class WorkerWithDpRank(msgspec.Struct, frozen=True, order=True):
    """One scheduler of one worker: what a request is placed on and what holds KV."""

    worker_id: WorkerId
    dp_rank: DpRank = DpRank(0)


class Tier(StrEnum):
    """Where KV lies inside a worker: the engine's paged cache, or the store below it."""

    DEVICE = "device"
    HOST = "host"


class Origin(StrEnum):
    """How a segment's KV was computed: at position 0 by itself, or inside a request that stayed exact."""

    ALONE = "alone"
    IN_CONTEXT = "in_context"


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class RemovalReason(StrEnum):
    """Why KV left a holder. Only `CAPACITY` may become a ghost."""

    CAPACITY = "capacity"
    DROPPED = "dropped"
    CLEARED = "cleared"
    HYGIENE = "hygiene"
