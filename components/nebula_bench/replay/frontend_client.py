"""HTTP calls to an OpenAI-compatible frontend."""

import asyncio
import time
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from nebula_bench.errors import FrontendError
from nebula_bench.replay.reply_stream import ReplyStream

_MODELS_TIMEOUT = aiohttp.ClientTimeout(total=10)
_JSON_HEADERS = {"Content-Type": "application/json"}
_MAX_ERROR_CHARACTERS = 300
# aiohttp refuses lines of more than twice this; a receipt takes some hundred bytes a segment.
_READ_BUFFER_BYTES = 1 << 20


class _Model(msgspec.Struct, frozen=True):
    id: str


class _ModelList(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]


class _ErrorBody(msgspec.Struct, frozen=True):
    message: str


class FrontendClient:
    """One pool of connections. aiohttp rather than httpx: its parser is compiled, which matters on few cores."""

    def __init__(self, url: str) -> None:
        self._url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # No limit of connections: how many requests are in flight is the replay's business.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=_READ_BUFFER_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        return self._session

    async def fetch_models(self) -> tuple[str, ...]:
        """
        Raises:
            FrontendError: nothing answers at the URL, or what answers is no such frontend.
        """
        where = f"{self._url}/v1/models"
        try:
            async with self._open_session.get(where, timeout=_MODELS_TIMEOUT) as response:
                body = await response.read()
                if response.status != 200:
                    raise FrontendError(f"{where} answers {response.status}; is this the URL of a frontend?")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise FrontendError(f"no frontend at {self._url}: {_reason(error)}") from error
        try:
            return tuple(model.id for model in msgspec.json.decode(body, type=_ModelList).data)
        except msgspec.MsgspecError as error:
            raise FrontendError(f"{where} does not list models: {error}") from error

    async def complete(self, body: bytes, timeout_s: float) -> ReplyStream:
        """Sends one completion and reads its stream to the end. Failures are told in the reply's `error`."""
        reply = ReplyStream()
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream(body, reply)
        except TimeoutError:
            reply.fail(f"no complete answer within {timeout_s:g} s")
        except (aiohttp.ClientError, ValueError) as error:  # ValueError: a line over the buffer
            reply.fail(_reason(error))
        return reply

    async def _stream(self, body: bytes, reply: ReplyStream) -> None:
        post = self._open_session.post(
            f"{self._url}/v1/completions", data=body, headers=_JSON_HEADERS, timeout=aiohttp.ClientTimeout(total=None)
        )
        async with post as response:
            if response.status != 200:
                reply.fail(f"{response.status}: {_error_text(await response.read())}")
                return
            async for line in response.content:
                reply.feed(line, time.perf_counter())
            reply.close()


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.strerror or "cannot connect"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _error_text(body: bytes) -> str:
    try:
        text = msgspec.json.decode(body, type=_ErrorBody).message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = body.decode(errors="replace")
    return text[:_MAX_ERROR_CHARACTERS]
