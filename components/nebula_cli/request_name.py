"""Ids of requests, as people read and type them."""

from nebula_protocol.ids import RequestId

_ANSWER_PREFIXES = ("chatcmpl-", "cmpl-")
"""What Dynamo's frontend writes before the id where it names an answer."""


def is_named(request_id: RequestId, text: str) -> bool:
    """Whether `text` is the beginning of the id, or of the `id` of its answer."""
    for prefix in _ANSWER_PREFIXES:
        text = text.removeprefix(prefix)
    return request_id.startswith(text)
