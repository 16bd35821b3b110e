"""One streamed answer, piece by piece, with the workers that made it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import msgspec

from nebula_protocol.ids import WorkerId

_DATA = "data:"
_DONE = "[DONE]"


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    finish_reason: str | None = None


class _Workers(msgspec.Struct, frozen=True):
    prefill_worker_id: WorkerId


class _EngineData(msgspec.Struct, frozen=True):
    worker_id: _Workers | None = None


class _Nvext(msgspec.Struct, frozen=True):
    engine_data: _EngineData | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: int


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    nvext: _Nvext | None = None
    error: _Error | None = None


_DECODER = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class StreamedAnswer:
    """What has arrived so far."""

    text: str = ""
    num_tokens: int | None = None
    """As the last chunk tells."""
    prefill_worker_ids: list[WorkerId] = field(default_factory=list)
    """One for each time that the prompt was prefilled."""
    finish_reason: str | None = None
    error: str | None = None

    def take(self, data: str) -> None:
        """The data of one event."""
        if data == _DONE:
            return
        chunk = _DECODER.decode(data)
        if chunk.error is not None:
            self.error = chunk.error.message
        for choice in chunk.choices:
            self.text += choice.text
            self.finish_reason = choice.finish_reason or self.finish_reason
        if chunk.usage is not None:
            self.num_tokens = chunk.usage.completion_tokens
        if chunk.nvext is not None and chunk.nvext.engine_data is not None:
            workers = chunk.nvext.engine_data.worker_id
            if workers is not None:
                self.prefill_worker_ids.append(workers.prefill_worker_id)


async def stream_completion(
    client: httpx.AsyncClient, *, model: str, prompt: list[int], max_tokens: int
) -> AsyncIterator[StreamedAnswer]:
    """The same answer again and again, after each event. A failure is its `error`, and its last state."""
    answer = StreamedAnswer()
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "nvext": {"extra_fields": ["engine_data"]},
    }
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                answer.error = f"{response.status_code}: {(await response.aread()).decode(errors='replace')}"
            else:
                async for line in response.aiter_lines():
                    if line.startswith(_DATA):
                        answer.take(line.removeprefix(_DATA).strip())
                        yield answer
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    if answer.error is None and answer.finish_reason is None:
        answer.error = "the stream ended before the answer was complete"
    yield answer
