"""Asks workers for their full state over NATS."""

from collections.abc import Sequence

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from nebula_protocol.codec import decode, encode
from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import StateChunk, StateRequest
from nebula_protocol.subjects import state_subject
from nebula_router.errors import WorkerGoneError

_CHUNK_TIMEOUT_S = 2.0
_MAX_CHUNKS = 10_000


class NatsStateSource:
    """`StateSource` over NATS: one request, a series of chunks to a private inbox."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def fetch_state(self, worker_id: WorkerId) -> Sequence[StateChunk]:
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox)
        try:
            await self._client.publish(state_subject(self._namespace, worker_id), encode(StateRequest()), reply=inbox)
            chunks: list[StateChunk] = []
            while not chunks or not chunks[-1].last:
                message = await subscription.next_msg(timeout=_CHUNK_TIMEOUT_S)
                chunks.append(_next_chunk(worker_id, chunks, message.data))
        except (TimeoutError, NatsTimeoutError, NatsError) as error:
            raise WorkerGoneError(worker_id, f"no full state: {error or 'time out'}") from error
        finally:
            await subscription.unsubscribe()
        return chunks


def _next_chunk(worker_id: WorkerId, before: Sequence[StateChunk], data: bytes) -> StateChunk:
    try:
        chunk = decode(data, StateChunk)
    except DecodeError as error:
        raise WorkerGoneError(worker_id, f"its state cannot be read: {error}") from error
    in_order = chunk.index == len(before) and all(chunk.snapshot_id == other.snapshot_id for other in before[:1])
    if not in_order or chunk.index >= _MAX_CHUNKS:
        raise WorkerGoneError(worker_id, f"chunk {chunk.index} of its state came where {len(before)} was due")
    return chunk
