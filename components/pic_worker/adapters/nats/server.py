"""Answers other workers and routers over NATS: peer requests, full state, control."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from nebula_nats.connection import flush
from nebula_protocol.codec import decode, encode
from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import PeerAnswer, PeerCall, PeerReply, PeerRequest, SetSplit, StateChunk, StateRequest
from nebula_protocol.subjects import alive_subject, control_subject, peer_subject, state_subject

log = structlog.get_logger()


class Answers(Protocol):
    """What the worker's service offers to the outside."""

    async def answer_peer(self, request: PeerRequest) -> PeerReply: ...

    def state_chunks(self) -> Iterable[StateChunk]: ...

    def set_split(self, control: SetSplit) -> None: ...


class NatsServer:
    """Subscribes for one worker; a request that cannot be read is logged and left unanswered."""

    def __init__(self, client: Client, namespace: str, worker_id: WorkerId, answers: Answers) -> None:
        self._client = client
        self._answers = answers
        self._running: set[asyncio.Task[None]] = set()
        self._subscriptions: list[Subscription] = []
        self._handlers: dict[str, Callable[[Msg], Awaitable[None]]] = {
            alive_subject(namespace, worker_id): self._on_alive,
            peer_subject(namespace, worker_id): self._on_peer,
            state_subject(namespace, worker_id): self._on_state,
            control_subject(namespace, worker_id): self._on_control,
        }

    async def start(self) -> None:
        for subject, handler in self._handlers.items():
            self._subscriptions.append(await self._client.subscribe(subject, cb=self._guarded(subject, handler)))
        await flush(self._client)

    async def stop(self) -> None:
        """Takes no more requests. Who asks from now on learns at once that nobody is here, instead of waiting."""
        try:
            for subscription in self._subscriptions:
                await subscription.unsubscribe()
            await flush(self._client)
        except NatsError as error:
            log.warning("unsubscribe_failed", error=str(error))

    def _guarded(self, subject: str, handler: Callable[[Msg], Awaitable[None]]) -> Callable[[Msg], Awaitable[None]]:
        async def handle(message: Msg) -> None:
            try:
                await handler(message)
            except DecodeError as error:
                log.warning("message_unreadable", subject=subject, error=str(error))

        return handle

    async def _on_alive(self, message: Msg) -> None:
        await message.respond(b"")

    async def _on_peer(self, message: Msg) -> None:
        request = decode(message.data, PeerCall).request
        # A fetch may wait for a segment; the next message must not wait with it.
        task = asyncio.create_task(self._reply(message, request))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _reply(self, message: Msg, request: PeerRequest) -> None:
        reply = await self._answers.answer_peer(request)
        try:
            await message.respond(encode(PeerAnswer(reply=reply)))
        except NatsError as error:
            log.warning("reply_lost", subject=message.subject, error=str(error))

    async def _on_state(self, message: Msg) -> None:
        decode(message.data, StateRequest)
        for chunk in self._answers.state_chunks():
            await message.respond(encode(chunk))

    async def _on_control(self, message: Msg) -> None:
        control = decode(message.data, SetSplit)
        if not 0 <= control.prefix_ratio <= 1:
            raise DecodeError(f"{control.prefix_ratio} is no share of a capacity")
        self._answers.set_split(control)
