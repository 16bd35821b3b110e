"""Where the data planes of other workers are, asked and answered over NATS."""

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from nebula_nats.connection import flush
from nebula_protocol.codec import decode, encode
from nebula_protocol.data_plane import DataLocated, DataPlaneCard, LocateData
from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import WorkerId
from nebula_protocol.subjects import data_subject
from pic_worker.errors import PeerGoneError, PeerRefusedError


class NatsDataDirectory:
    """`DataDirectory`; each worker is asked once, until its answer turns out to be outdated."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._cards: dict[WorkerId, DataPlaneCard] = {}

    async def locate(self, worker_id: WorkerId, timeout_s: float) -> DataPlaneCard:
        card = self._cards.get(worker_id)
        if card is not None:
            return card
        subject = data_subject(self._namespace, worker_id)
        try:
            message = await self._client.request(subject, encode(LocateData()), timeout=timeout_s)
            card = decode(message.data, DataLocated).card
        except (NatsError, TimeoutError, DecodeError) as error:
            raise PeerGoneError(worker_id, str(error) or type(error).__name__) from error
        if card is None:
            raise PeerRefusedError(worker_id, "it has no data plane")
        self._cards[worker_id] = card
        return card

    def forget(self, worker_id: WorkerId) -> None:
        self._cards.pop(worker_id, None)


async def answer_locations(client: Client, namespace: str, worker_id: WorkerId, card: DataPlaneCard | None) -> None:
    """From now on others learn from this worker where its data plane is, as long as the connection lasts."""
    answer = encode(DataLocated(card=card))

    async def respond(message: Msg) -> None:
        await message.respond(answer)

    await client.subscribe(data_subject(namespace, worker_id), cb=respond)
    await flush(client)
