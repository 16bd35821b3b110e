"""What the benchmarks read in one chunk of a chat that the frontend streams."""

import msgspec

from nebula_protocol.receipt import RECEIPT_KEY, Receipt


class TopToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float


class TokenPlace(msgspec.Struct, frozen=True):
    top_logprobs: tuple[TopToken, ...] = ()


class Logprobs(msgspec.Struct, frozen=True):
    content: tuple[TokenPlace, ...] | None = None


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class ChatChoice(msgspec.Struct, frozen=True):
    delta: Delta = Delta()
    logprobs: Logprobs | None = None


class _EngineData(msgspec.Struct, frozen=True, rename={"receipt": RECEIPT_KEY}):
    receipt: Receipt | None = None


class _Nvext(msgspec.Struct, frozen=True):
    engine_data: _EngineData | None = None


class ChatError(msgspec.Struct, frozen=True):
    message: str


class ChatChunk(msgspec.Struct, frozen=True):
    choices: tuple[ChatChoice, ...] = ()
    nvext: _Nvext | None = None
    error: ChatError | None = None

    @property
    def receipt(self) -> Receipt | None:
        engine_data = None if self.nvext is None else self.nvext.engine_data
        return None if engine_data is None else engine_data.receipt
