"""The frontend's server-sent events: when the first content came, the receipt, and what went wrong."""

import msgspec

from nebula_protocol.receipt import RECEIPT_KEY, Receipt

_DATA = b"data:"
_DONE = b"[DONE]"


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    finish_reason: str | None = None


class _EngineData(msgspec.Struct, frozen=True, rename={"receipt": RECEIPT_KEY}):
    receipt: msgspec.Raw = msgspec.Raw()


class _Nvext(msgspec.Struct, frozen=True):
    engine_data: _EngineData | None = None


class _StreamError(msgspec.Struct, frozen=True):
    message: str
    code: int | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    nvext: _Nvext | None = None
    error: _StreamError | None = None


_DECODER = msgspec.json.Decoder(_Chunk)


class ReplyStream:
    """Takes the lines of one reply as they arrive. All times are the caller's clock."""

    __slots__ = ("_is_done", "_is_finished", "error", "first_content_s", "receipt")

    def __init__(self) -> None:
        self.first_content_s: float | None = None
        self.receipt: Receipt | None = None
        self.error: str | None = None
        self._is_finished = False
        self._is_done = False

    def feed(self, line: bytes, now_s: float) -> None:
        """One line, with or without its end; anything but data lines is ignored."""
        if not line.startswith(_DATA):
            return
        data = line[len(_DATA) :].strip()
        if data == _DONE:
            self._is_done = True
            return
        try:
            chunk = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self.fail(f"not a completion chunk: {error}")
            return
        self._take(chunk, now_s)

    def close(self) -> None:
        """The connection ended; a reply that stopped before its end has failed."""
        if not (self._is_done and self._is_finished):
            self.fail("the stream ended before the answer was complete")

    def _take(self, chunk: _Chunk, now_s: float) -> None:
        if chunk.error is not None:
            code = "" if chunk.error.code is None else f"{chunk.error.code}: "
            self.fail(f"{code}{chunk.error.message}")
        for choice in chunk.choices:
            # A token whose text is not complete yet may come as empty text; the end of the answer counts as content.
            if self.first_content_s is None and (choice.text or choice.finish_reason is not None):
                self.first_content_s = now_s
            self._is_finished |= choice.finish_reason is not None
        if chunk.nvext is not None and chunk.nvext.engine_data is not None:
            self._take_receipt(bytes(chunk.nvext.engine_data.receipt))

    def _take_receipt(self, raw: bytes) -> None:
        if not raw:
            return
        try:
            self.receipt = msgspec.json.decode(raw, type=Receipt)
        except msgspec.MsgspecError as error:
            self.fail(f"not a receipt: {error}")

    def fail(self, reason: str) -> None:
        # The first reason is the cause; what follows from it says less.
        if self.error is None:
            self.error = reason
