"""A chat whose passages return in another order."""

from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import msgspec

from nebula_bench.chat_chunk import ChatChunk
from nebula_bench.errors import BenchError
from nebula_protocol.receipt import Receipt

_DATA = "data:"
_DONE = "[DONE]"
_ANSWER_TOKENS = 48


_DECODER = msgspec.json.Decoder(ChatChunk)


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    text: str
    receipt: Receipt


async def ask_about(client: httpx.AsyncClient, model: str, passages: Sequence[str], question: str) -> ChatAnswer:
    """Each passage is a message of its own, and so a segment.

    Raises:
        BenchError: no answer, or one without a receipt.
    """
    messages = [{"role": "user", "content": text} for text in (*passages, question)]
    body = {
        "model": model,
        "messages": [{"role": "system", "content": "You answer questions about texts."}, *messages],
        "max_tokens": _ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "nvext": {"extra_fields": ["engine_data"]},
    }
    text, receipt = "", None
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                raise BenchError(f"{response.status_code}: {(await response.aread()).decode(errors='replace')}")
            async for line in response.aiter_lines():
                if not line.startswith(_DATA) or (data := line.removeprefix(_DATA).strip()) == _DONE:
                    continue
                chunk = _DECODER.decode(data)
                if chunk.error is not None:
                    raise BenchError(chunk.error.message)
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                receipt = chunk.receipt or receipt
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        raise BenchError(f"chat: {type(error).__name__}: {error}") from error
    if receipt is None:
        raise BenchError("the chat's answer came without a receipt")
    return ChatAnswer(text, receipt)
