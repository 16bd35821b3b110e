"""Stands between home and source: holds the stream at a byte, spoils one, or cuts it there."""

import asyncio
import contextlib
from enum import Enum


class Harm(Enum):
    HOLD = "hold"
    SPOIL = "spoil"
    CUT = "cut"


class ChoppingProxy:
    """What the source sends passes until `at_byte`; there the harm is done, once."""

    def __init__(self, host: str, port: int, harm: Harm, at_byte: int) -> None:
        self._source = (host, port)
        self._harm = harm
        self._at_byte = at_byte
        self._tasks: set[asyncio.Task[None]] = set()
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        self.go_on.set()
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source_reader, source_writer = await asyncio.open_connection(*self._source)
        up = asyncio.create_task(_pump(reader, source_writer))
        down = asyncio.create_task(self._harmful(source_reader, writer))
        self._tasks |= {up, down}
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        for task in (up, down):
            task.cancel()
        writer.close()
        source_writer.close()

    async def _harmful(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                at = self._at_byte - passed
                passed += len(data)
                if 0 <= at < len(data) and not self.reached.is_set():
                    self.reached.set()
                    if self._harm is Harm.CUT:
                        return
                    if self._harm is Harm.HOLD:
                        writer.write(data[:at])
                        await self.go_on.wait()
                        data = data[at:]
                    else:
                        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                writer.write(data)
                await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
