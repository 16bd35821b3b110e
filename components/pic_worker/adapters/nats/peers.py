"""Asks other workers over NATS."""

import asyncio

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from nebula_protocol.codec import decode, encode
from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import FetchReply, FetchRequest, PeerAnswer, PeerCall, PeerReply, PromptPulled, PullPrompt
from nebula_protocol.subjects import alive_subject, peer_subject
from pic_worker.errors import PeerGoneError

# How often a peer that takes its time is asked whether it still lives.
_PROBE_PERIOD_S = 0.5


class NatsPeers:
    """`Peers` by NATS request and reply.

    A worker without a subscriber is known to be gone at once; one that dies while it is waited for, within a probe.
    """

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
            message = await self._reply_of_the_living(worker_id, encode(PeerCall(request=request)), timeout_s)
            return decode(message.data, PeerAnswer).reply
        except DecodeError as error:
            raise PeerGoneError(worker_id, f"its answer cannot be read: {error}") from error
        except (NatsError, TimeoutError) as error:
            raise PeerGoneError(worker_id, str(error) or type(error).__name__) from error

    async def _reply_of_the_living(self, worker_id: WorkerId, call: bytes, timeout_s: float) -> Msg:
        """The reply, or what says that there will be none, whichever comes first."""
        replying = asyncio.ensure_future(
            self._client.request(peer_subject(self._namespace, worker_id), call, timeout=timeout_s)
        )
        watching = asyncio.ensure_future(self._watch(worker_id))
        try:
            await asyncio.wait((replying, watching), return_when=asyncio.FIRST_COMPLETED)
            if not replying.done():
                watching.result()
            return await replying
        finally:
            replying.cancel()
            watching.cancel()

    async def _watch(self, worker_id: WorkerId) -> None:
        """Runs until the worker's process is gone.

        Raises:
            NoRespondersError: it is.
        """
        while True:
            await asyncio.sleep(_PROBE_PERIOD_S)
            try:
                await self._client.request(alive_subject(self._namespace, worker_id), timeout=_PROBE_PERIOD_S)
            except NoRespondersError:
                raise
            except (NatsError, TimeoutError):
                # A busy worker answers late; only the server's word that nobody listens counts.
                continue
