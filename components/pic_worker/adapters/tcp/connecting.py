"""From a source's card to a channel on which both know each other."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nebula_protocol.data_plane import DataPlaneCard
from pic_worker.adapters.tcp.frame_socket import ChannelLostError, FrameSocket
from pic_worker.adapters.tcp.introduction import introduce
from pic_worker.adapters.tcp.source_channel import SourceChannel
from pic_worker.core.transfer_limits import mismatch
from pic_worker.errors import PeerGoneError, PeerRefusedError

_BUFFER_BYTES = 4 << 20
_BUFFER_LIMIT = Path("/proc/sys/net/core/rmem_max")


@asynccontextmanager
async def open_channel(
    source: DataPlaneCard, home: DataPlaneCard, secret: bytes, stall_s: float
) -> AsyncIterator[SourceChannel]:
    """
    Raises:
        PeerGoneError: on entry, the source is not there, does not answer in time, or does not know the secret.
        PeerRefusedError: on entry, the two do not fit together.
    """
    # By its card already: a host that would refuse need not be bothered.
    reason = mismatch(home, source)
    if reason is not None:
        raise PeerRefusedError(source.worker_id, reason)
    try:
        async with asyncio.timeout(stall_s):
            opened = await _open(source, home, secret, stall_s)
    except (ChannelLostError, OSError, TimeoutError) as error:
        raise PeerGoneError(source.worker_id, str(error) or "it does not answer") from error
    try:
        yield opened
    finally:
        opened.close()


async def _open(source: DataPlaneCard, home: DataPlaneCard, secret: bytes, stall_s: float) -> SourceChannel:
    channel = FrameSocket(await _connect(source.host, source.port), stall_s)
    try:
        welcome = await introduce(channel, secret, home, source.worker_id)
    except BaseException:
        channel.close()
        raise
    return SourceChannel(channel, welcome, source.worker_id)


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    family, kind, protocol, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    connecting = socket.socket(family, kind, protocol)
    try:
        connecting.setblocking(False)
        _enlarge_buffer(connecting)
        await loop.sock_connect(connecting, address)
    except BaseException:
        connecting.close()
        raise
    return connecting


def _enlarge_buffer(connecting: socket.socket) -> None:
    """Where the kernel allows a large one; elsewhere it does better by growing the buffer itself."""
    try:
        limit_bytes = int(_BUFFER_LIMIT.read_text())
    except (OSError, ValueError):
        return
    if limit_bytes >= _BUFFER_BYTES:
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
