"""The first token of a prompt that is sent to one chosen worker, as the client sees it."""

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from nebula_bench.chat_chunk import ChatChoice, ChatChunk
from nebula_bench.data_plane.top_tokens import TopTokens
from nebula_bench.errors import BenchError
from nebula_bench.pic_vllm.passage_prompts import MarkedPrompt
from nebula_bench.span_annotation import spans_annotation
from nebula_protocol.ids import WorkerId
from nebula_protocol.receipt import Receipt

_DATA = b"data:"
_DONE = b"[DONE]"
_ANSWER_TOKENS = 4
"""More than one, so that decode takes over."""
_NUM_TOP = 20
"""The most that the frontend lets clients ask for."""
_MAX_ERROR_CHARACTERS = 300
# A receipt takes some hundred bytes a segment.
_READ_BUFFER_BYTES = 1 << 20


_DECODER = msgspec.json.Decoder(ChatChunk)


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    after_s: float
    """From when the request was sent."""
    receipt: Receipt
    top: TopTokens
    """Of the first token; empty where the engine makes up its answers."""


class AnswerStream:
    """Takes the lines of one streamed chat. All times are the caller's clock."""

    def __init__(self, sent_s: float) -> None:
        self._sent_s = sent_s
        self._first_s: float | None = None
        self._receipt: Receipt | None = None
        self._top: TopTokens = {}
        self._is_done = False

    def feed(self, line: bytes, now_s: float) -> None:
        """
        Raises:
            BenchError: the line tells of an error, or is no chunk.
        """
        if not line.startswith(_DATA):
            return
        data = line[len(_DATA) :].strip()
        if data == _DONE:
            self._is_done = True
            return
        try:
            chunk = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BenchError(f"not a chunk of a chat: {error}") from error
        if chunk.error is not None:
            raise BenchError(chunk.error.message)
        if chunk.choices and self._first_s is None:
            self._first_s = now_s
            self._top = _top_of(chunk.choices[0])
        self._receipt = chunk.receipt or self._receipt

    def end(self) -> FirstAnswer:
        """
        Raises:
            BenchError: the answer is not whole.
        """
        if not self._is_done or self._first_s is None:
            raise BenchError("the stream ended before the answer was complete")
        if self._receipt is None:
            raise BenchError("an answer came without a receipt")
        return FirstAnswer(self._first_s - self._sent_s, self._receipt, self._top)


def _top_of(choice: ChatChoice) -> TopTokens:
    places = () if choice.logprobs is None else choice.logprobs.content or ()
    return {top.token: top.logprob for top in places[0].top_logprobs} if places else {}


class ChosenWorkerClient:
    """Use as a context."""

    def __init__(self, url: str, model: str, answer_s: float) -> None:
        self._url = url
        self._model = model
        self._answer_s = answer_s

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._answer_s)
        self._session = aiohttp.ClientSession(self._url, timeout=timeout, read_bufsize=_READ_BUFFER_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, prompt: MarkedPrompt, worker_id: WorkerId) -> FirstAnswer:
        """
        Raises:
            BenchError: no whole answer with a receipt, or one of another worker.
        """
        body = chat_body(self._model, prompt, worker_id)
        stream = AnswerStream(time.perf_counter())
        try:
            async with self._session.post("/v1/chat/completions", data=body, headers=_JSON) as response:
                if response.status != 200:
                    text = (await response.text(errors="replace"))[:_MAX_ERROR_CHARACTERS]
                    raise BenchError(f"{response.status}: {text}")
                async for line in response.content:
                    stream.feed(line, time.perf_counter())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:  # ValueError: a line over the buffer
            raise BenchError(f"a prompt of {len(prompt.tokens)} tokens: {type(error).__name__}: {error}") from error
        answer = stream.end()
        if answer.receipt.worker.worker_id != worker_id:
            raise BenchError(f"worker {answer.receipt.worker.worker_id} answered, not {worker_id}")
        return answer


_JSON = {"Content-Type": "application/json"}


def chat_body(model: str, prompt: MarkedPrompt, worker_id: WorkerId) -> bytes:
    """A chat whose prompt is given as tokens: the frontend tells of more likely tokens there than in completions."""
    return msgspec.json.encode(
        {
            "model": model,
            # Must be there; the tokens are taken in its place.
            "messages": [{"role": "user", "content": ""}],
            "max_tokens": _ANSWER_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "logprobs": True,
            "top_logprobs": _NUM_TOP,
            # Two tokens may have the same text.
            "return_tokens_as_token_ids": True,
            "nvext": {
                "token_data": prompt.tokens,
                "prefill_worker_id": worker_id,
                "annotations": [spans_annotation(prompt.spans)],
                "extra_fields": ["engine_data"],
            },
        }
    )
