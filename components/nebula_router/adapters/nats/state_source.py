"""Asks workers for their full state over NATS."""

from collections.abc import Sequence

from nats.aio.client import NO_RESPONDERS_STATUS, Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

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

    def __init__(self, client: Client, namespace: str, *, chunk_timeout_s: float = _CHUNK_TIMEOUT_S) -> None:
        """
        Args:
            chunk_timeout_s: longest wait for the first chunk, and between two.
        """
        self._client = client
        self._namespace = namespace
        self._chunk_timeout_s = chunk_timeout_s

    async def fetch_state(self, worker_id: WorkerId) -> Sequence[StateChunk]:
        try:
            return await self._fetch(worker_id)
        except DecodeError as error:
            raise WorkerGoneError(worker_id, f"its state cannot be read: {error}") from error
        except NoRespondersError as error:
            raise WorkerGoneError(worker_id, "nobody answers for its state") from error
        except (TimeoutError, NatsError) as error:
            raise WorkerGoneError(worker_id, f"no full state: {error}") from error

    async def _fetch(self, worker_id: WorkerId) -> list[StateChunk]:
        """
        Raises:
            DecodeError: a chunk cannot be read, or comes out of order.
            TimeoutError: the next chunk does not come.
            nats.errors.Error: nobody answers, or the connection is lost.
        """
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox)
        try:
            await self._client.publish(state_subject(self._namespace, worker_id), encode(StateRequest()), reply=inbox)
            chunks: list[StateChunk] = []
            while not chunks or not chunks[-1].last:
                message = await subscription.next_msg(timeout=self._chunk_timeout_s)
                chunks.append(_next_chunk(chunks, message))
            return chunks
        finally:
            await subscription.unsubscribe()


def _next_chunk(before: Sequence[StateChunk], message: Msg) -> StateChunk:
    if message.header and message.header.get("Status") == NO_RESPONDERS_STATUS:
        raise NoRespondersError
    chunk = decode(message.data, StateChunk)
    in_order = chunk.index == len(before) and all(chunk.snapshot_id == other.snapshot_id for other in before[:1])
    if not in_order or chunk.index >= _MAX_CHUNKS:
        raise DecodeError(f"chunk {chunk.index} of snapshot {chunk.snapshot_id} came where {len(before)} was due")
    return chunk
