"""Requests that are wrong, and what a client must be told about each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nebula_bench.pseudo_tokens import PseudoVocabulary

JsonBody = Mapping[str, object]

_CONTEXT_TOKENS = 32_768
_PROMPT_TOKENS = 40
_TOKENS = PseudoVocabulary().tokens("bad input", _PROMPT_TOKENS).tolist()
_TEXT = "Which of these requests is wrong?"
# A token of any tokenizer holds at most so many characters of this text.
_LONG_TEXT = "wrong " * _CONTEXT_TOKENS


class Api(StrEnum):
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


class CheckedBy(StrEnum):
    FRONTEND = "frontend"
    """Dynamo's frontend refuses it by itself."""
    ROUTER = "router"
    """Only Nebula's router knows that it is wrong."""


@dataclass(frozen=True, slots=True)
class BadInput:
    name: str
    api: Api
    body: JsonBody
    """Without `model`, `stream` and `max_tokens`."""
    checked_by: CheckedBy
    reason: str
    """Part of the reason that whoever checks it gives."""


_NVEXT_CASES: dict[str, tuple[object, CheckedBy, str]] = {
    "span outside the prompt": (["nebula.spans=[[0,5000]]"], CheckedBy.ROUTER, "is outside the prompt"),
    "overlapping spans": (["nebula.spans=[[0,6],[4,8]]"], CheckedBy.ROUTER, "overlaps the one before it"),
    "empty span": (["nebula.spans=[[3,3]]"], CheckedBy.ROUTER, "is empty"),
    "spans that are no JSON": (["nebula.spans=[[0,"], CheckedBy.ROUTER, "the right form is nebula.spans="),
    "spans that are no pairs": (["nebula.spans=[0,4]"], CheckedBy.ROUTER, "the right form is nebula.spans="),
    "pic neither on nor off": (["nebula.pic=maybe"], CheckedBy.ROUTER, "the right form is nebula.pic="),
    "annotation given twice": (["nebula.pic=on", "nebula.pic=off"], CheckedBy.ROUTER, "is given twice"),
    "unknown nebula annotation": (["nebula.colour=red"], CheckedBy.ROUTER, "unknown annotation"),
    "annotations that are no list": ("nebula.pic=off", CheckedBy.FRONTEND, "expected a sequence"),
    "annotation that is no text": ([3], CheckedBy.FRONTEND, "expected a string"),
}

_PROMPT_CASES: dict[str, tuple[object, str]] = {
    "empty prompt, text": ("", "cannot be empty"),
    "empty prompt, token ids": ([], "cannot be empty"),
    "prompt over the context, text": (_LONG_TEXT, "context"),
    "prompt over the context, token ids": ([_TOKENS[0]] * _CONTEXT_TOKENS, "context"),
    "negative token id": ([*_TOKENS, -1], "did not match any variant of untagged enum Prompt"),
    "token id over 32 bits": ([*_TOKENS, 1 << 40], "did not match any variant of untagged enum Prompt"),
    "token id as text": ([*_TOKENS, "7"], "did not match any variant of untagged enum Prompt"),
}

_MESSAGES_CASES: dict[str, tuple[object, str]] = {
    "no messages": ([], "At least one message is required"),
    "prompt over the context, text": ([{"role": "user", "content": _LONG_TEXT}], "context"),
}


def bad_inputs() -> tuple[BadInput, ...]:
    return tuple(_chat_cases()) + tuple(_completion_cases())


def good_body() -> JsonBody:
    """What every server must go on answering, on `/v1/chat/completions`."""
    return {"messages": [{"role": "user", "content": _TEXT}]}


def _chat_cases() -> Iterator[BadInput]:
    for name, (messages, reason) in _MESSAGES_CASES.items():
        yield BadInput(name, Api.CHAT, {"messages": messages}, CheckedBy.FRONTEND, reason)
    for name, (annotations, checked_by, reason) in _NVEXT_CASES.items():
        body = {**good_body(), "nvext": {"annotations": annotations}}
        yield BadInput(name, Api.CHAT, body, checked_by, reason)


def _completion_cases() -> Iterator[BadInput]:
    for name, (prompt, reason) in _PROMPT_CASES.items():
        yield BadInput(name, Api.COMPLETIONS, {"prompt": prompt}, CheckedBy.FRONTEND, reason)
    for name, (annotations, checked_by, reason) in _NVEXT_CASES.items():
        body = {"prompt": _TOKENS, "nvext": {"annotations": annotations}}
        yield BadInput(name, Api.COMPLETIONS, body, checked_by, reason)
