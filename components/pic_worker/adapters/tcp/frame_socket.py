"""Frames and raw pages over one socket, without a copy on the way: bytes go from and to the caller's memory."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from pic_worker.errors import WorkerError

F = TypeVar("F")

_LENGTH = struct.Struct(">I")
_MAX_VECTORS = 64
"""Pieces of memory in one system call; Linux takes 1,024."""
_WAKE_BYTES = 1 << 18
"""At most so much has to be there before a receiver that waits for more is woken."""
_TURN_BYTES = 8 << 20
"""After so many without a wait the loop has its turn."""


class ChannelLostError(WorkerError):
    """The other side has closed, does not move, or does not keep to the form."""


class FrameSocket:
    """One reader and one writer at a time. Each wait for the other side has a limit of `stall_s`."""

    def __init__(self, connected: socket.socket, stall_s: float) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self.stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self.num_received_bytes = 0
        self._turn_bytes = 0
        # A larger part of its buffer, and the kernel would let the sender run dry before it wakes the receiver.
        buffer_bytes = connected.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self._most_wake_bytes = min(_WAKE_BYTES, buffer_bytes // 8)
        self._wake_bytes = 1
        self._is_closed = False
        self._waits: set[asyncio.Future[None]] = set()

    def close(self) -> None:
        """At once: who waits on it gets an error, and nothing more is read or written."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for ready in self._waits:
            if not ready.done():
                ready.set_exception(ChannelLostError("closed"))

    # ---- frames ----

    async def send(self, frame: object) -> None:
        """
        Raises:
            ChannelLostError: as all below.
        """
        data = msgspec.msgpack.encode(frame)
        await self.send_views((memoryview(_LENGTH.pack(len(data))), memoryview(data)))

    async def receive(self, decoder: "msgspec.msgpack.Decoder[F]", max_bytes: int, *, idle_s: float = 0.0) -> F:
        """
        Args:
            max_bytes: a longer frame is refused before memory is taken for it.
            idle_s: how long the other side may say nothing beyond the limit; once it begins it has to go on.
        """
        length = bytearray(_LENGTH.size)
        await self.receive_views((memoryview(length),), idle_s=idle_s)
        (num_bytes,) = _LENGTH.unpack(length)
        if num_bytes > max_bytes:
            raise ChannelLostError(f"a frame of {num_bytes} bytes is over the limit of {max_bytes}")
        data = bytearray(num_bytes)
        if num_bytes:
            await self.receive_views((memoryview(data),))
        try:
            return decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise ChannelLostError(f"a frame that cannot be read: {error}") from error

    # ---- bytes ----

    async def send_views(self, views: Sequence[memoryview]) -> None:
        left = deque(views)
        while left:
            try:
                sent = self._socket.sendmsg([left[i] for i in range(min(len(left), _MAX_VECTORS))])
            except BlockingIOError:
                await self._wait_to_send()
                continue
            except OSError as error:
                raise ChannelLostError(str(error)) from error
            _advance(left, sent)
            await self._take_turns(sent)

    async def _wait_to_send(self) -> None:
        try:
            await self._wait(self._loop.add_writer, self._loop.remove_writer, self.stall_s)
        except TimeoutError as error:
            raise ChannelLostError(f"nothing is taken for {self.stall_s} s") from error

    async def receive_views(self, views: Sequence[memoryview], *, idle_s: float = 0.0) -> None:
        """Fills them."""
        left = deque(views)
        left_bytes = sum(map(len, views))
        limit_s = self.stall_s + idle_s
        was_slow = False
        while left:
            try:
                vectors = [left[i] for i in range(min(len(left), _MAX_VECTORS))]
                received = self._socket.recvmsg_into(vectors)[0]
            except BlockingIOError:
                if was_slow:
                    raise ChannelLostError(f"nothing comes for {limit_s} s") from None
                was_slow = await self._wait_to_receive(left_bytes, limit_s)
                continue
            except OSError as error:
                raise ChannelLostError(str(error)) from error
            if received == 0:
                raise ChannelLostError("the other side has closed")
            limit_s, was_slow = self.stall_s, False
            self.num_received_bytes += received
            left_bytes -= received
            _advance(left, received)
            await self._take_turns(received)

    async def _wait_to_receive(self, left_bytes: int, limit_s: float) -> bool:
        """Whether the time was over; a little may have come all the same."""
        # Woken for each packet, the loop would be busy with nothing else.
        lowest_bytes = min(left_bytes, self._most_wake_bytes)
        if lowest_bytes != self._wake_bytes and not self._is_closed:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowest_bytes)
            self._wake_bytes = lowest_bytes
        try:
            await self._wait(self._loop.add_reader, self._loop.remove_reader, limit_s)
        except TimeoutError:
            return True
        return False

    async def _wait(
        self,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], object],
        limit_s: float,
    ) -> None:
        if self._is_closed:
            raise ChannelLostError("closed")
        file = self._socket.fileno()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._waits.add(ready)
        watch(file, lambda: None if ready.done() else ready.set_result(None))
        try:
            async with asyncio.timeout(limit_s):
                await ready
        finally:
            self._waits.discard(ready)
            if not self._is_closed:
                unwatch(file)

    async def _take_turns(self, num_bytes: int) -> None:
        self._turn_bytes += num_bytes
        if self._turn_bytes >= _TURN_BYTES:
            self._turn_bytes = 0
            await asyncio.sleep(0)


def _advance(left: "deque[memoryview]", num_bytes: int) -> None:
    """Takes the leading `num_bytes` away."""
    while num_bytes:
        if num_bytes < len(left[0]):
            left[0] = left[0][num_bytes:]
            return
        num_bytes -= len(left.popleft())
