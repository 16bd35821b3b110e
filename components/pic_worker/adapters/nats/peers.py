"""Asks other workers over NATS."""

from nats.aio.client import Client
from nats.errors import Error as NatsError

from nebula_protocol.codec import decode, encode
from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import FetchReply, FetchRequest, PeerAnswer, PeerCall, PeerReply, PromptPulled, PullPrompt
from nebula_protocol.subjects import peer_subject
from pic_worker.errors import PeerGoneError


class NatsPeers:
    """`Peers` by NATS request and reply. A worker without a subscriber is known to be gone at once."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def fetch(self, worker_id: WorkerId, request: FetchRequest, timeout_s: float) -> FetchReply:
        reply = await self._ask(worker_id, request, timeout_s)
        if not isinstance(reply, FetchReply):
            raise PeerGoneError(worker_id, "it answered a fetch with something else")
        return reply

    async def pull_prompt(self, worker_id: WorkerId, request: PullPrompt, timeout_s: float) -> PromptPulled:
        reply = await self._ask(worker_id, request, timeout_s)
        if not isinstance(reply, PromptPulled):
            raise PeerGoneError(worker_id, "it answered a pull with something else")
        return reply

    async def _ask(self, worker_id: WorkerId, request: FetchRequest | PullPrompt, timeout_s: float) -> PeerReply:
        try:
            message = await self._client.request(
                peer_subject(self._namespace, worker_id), encode(PeerCall(request=request)), timeout=timeout_s
            )
            return decode(message.data, PeerAnswer).reply
        except DecodeError as error:
            raise PeerGoneError(worker_id, f"its answer cannot be read: {error}") from error
        except (NatsError, TimeoutError) as error:
            raise PeerGoneError(worker_id, str(error) or type(error).__name__) from error
