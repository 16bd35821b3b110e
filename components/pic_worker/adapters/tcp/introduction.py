"""Both sides of the handshake: each proves that it knows the secret, then they see whether they fit together."""

import secrets

import msgspec

from nebula_protocol.data_plane import Challenge, DataPlaneCard, Hello, Proof, Refused, Welcome
from nebula_protocol.ids import WorkerId
from pic_worker.adapters.tcp.frame_socket import ChannelLostError, FrameSocket
from pic_worker.core.handshake import NONCE_BYTES, Side, is_proof, prove
from pic_worker.core.transfer_limits import MAX_HANDSHAKE_BYTES, mismatch
from pic_worker.errors import PeerRefusedError

MAX_ATTACHMENT_BYTES = 1 << 20

_FROM_HOME = msgspec.msgpack.Decoder(Hello | Proof)
_FROM_SOURCE = msgspec.msgpack.Decoder(Challenge | Welcome | Refused)


async def introduce(channel: FrameSocket, secret: bytes, home: DataPlaneCard, source_id: WorkerId) -> Welcome:
    """The home's side.

    Raises:
        ChannelLostError: the other side does not know the secret, or is no source.
        PeerRefusedError: it does, but the two do not fit together.
    """
    hello = Hello(nonce=secrets.token_bytes(NONCE_BYTES), home=home)
    await channel.send(hello)
    challenge = await channel.receive(_FROM_SOURCE, MAX_HANDSHAKE_BYTES)
    if not isinstance(challenge, Challenge) or len(challenge.nonce) != NONCE_BYTES:
        raise ChannelLostError("no challenge")
    if not is_proof(challenge.proof, secret, Side.SOURCE, hello, challenge.nonce):
        raise ChannelLostError("it does not know the deployment's secret")
    await channel.send(Proof(proof=prove(secret, Side.HOME, hello, challenge.nonce)))
    answer = await channel.receive(_FROM_SOURCE, MAX_ATTACHMENT_BYTES)
    if isinstance(answer, Refused):
        raise PeerRefusedError(source_id, answer.reason)
    if not isinstance(answer, Welcome):
        raise ChannelLostError("a second challenge")
    # Another worker may have the address by now.
    if answer.source.worker_id != source_id:
        raise ChannelLostError("another worker answers")
    reason = mismatch(home, answer.source)
    if reason is not None:
        raise PeerRefusedError(source_id, reason)
    return answer


async def admit(channel: FrameSocket, secret: bytes, welcome: Welcome) -> WorkerId:
    """The source's side: who has come.

    Raises:
        ChannelLostError: somebody who does not know the secret, or whom nothing here fits.
    """
    hello = await channel.receive(_FROM_HOME, MAX_HANDSHAKE_BYTES)
    if not isinstance(hello, Hello) or len(hello.nonce) != NONCE_BYTES:
        raise ChannelLostError("no hello")
    nonce = secrets.token_bytes(NONCE_BYTES)
    await channel.send(Challenge(nonce=nonce, proof=prove(secret, Side.SOURCE, hello, nonce)))
    proof = await channel.receive(_FROM_HOME, MAX_HANDSHAKE_BYTES)
    if not isinstance(proof, Proof) or not is_proof(proof.proof, secret, Side.HOME, hello, nonce):
        raise ChannelLostError("it does not know the deployment's secret")
    reason = mismatch(welcome.source, hello.home)
    if reason is not None:
        await channel.send(Refused(reason=reason))
        raise ChannelLostError(reason)
    await channel.send(welcome)
    return hello.home.worker_id
