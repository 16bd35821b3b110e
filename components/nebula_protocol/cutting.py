"""How prompts are cut: the settings that router and worker must share, so that equal text gets equal keys."""

import msgspec


class ContentChunks(msgspec.Struct, frozen=True, kw_only=True):
    """Content-defined chunking of long stretches that no other mark divides; lengths in tokens."""

    min_tokens: int = 64
    mean_tokens: int = 256
    max_tokens: int = 1024


class CutterConfig(msgspec.Struct, frozen=True, kw_only=True):
    separators: tuple[tuple[int, ...], ...] = ()
    """Token sequences that end a segment's neighbourhood; they stay in the prompt and belong to no segment."""
    message_starts: tuple[tuple[int, ...], ...] = ()
    """Token sequences with which a chat message begins (for ChatML: the ids of `<|im_start|>`)."""
    content_chunks: ContentChunks | None = ContentChunks()
    """None: stretches without marks become one segment each."""
    min_segment_tokens: int = 32
    """Shorter ones are not worth an entry; their tokens are gap tokens."""
