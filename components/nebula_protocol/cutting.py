"""How prompts are cut: what router and worker must share, so that equal text gets equal keys."""

import msgspec

SEAM_WINDOW_TOKENS = 8
"""A content-defined seam is chosen by the tokens around it: half of the window before, half behind."""


class ContentChunks(msgspec.Struct, frozen=True, kw_only=True):
    """Content-defined chunking of long stretches that no other mark divides; lengths in tokens.

    Raises:
        ValueError: lengths that no chunking can keep.
    """

    min_tokens: int = 64
    """No chunk is shorter, at the edges of a stretch either."""
    mean_tokens: int = 256
    """Stretches up to this length stay whole; longer ones get chunks of this length on average."""
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        if self.min_tokens < SEAM_WINDOW_TOKENS:
            raise ValueError(f"content chunks need a minimum of at least {SEAM_WINDOW_TOKENS} tokens")
        # Seams are local minima of a hash, at least half the mean apart: see content_chunks.py.
        if self.mean_tokens < 2 * self.min_tokens:
            raise ValueError(
                f"the mean of content chunks ({self.mean_tokens} tokens) must be at least twice their "
                f"minimum ({self.min_tokens} tokens)"
            )
        if self.max_tokens < self.mean_tokens:
            raise ValueError(
                f"the maximum of content chunks ({self.max_tokens} tokens) must not be below their "
                f"mean ({self.mean_tokens} tokens)"
            )


class CutterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    Raises:
        ValueError: a mark without tokens.
    """

    separators: tuple[tuple[int, ...], ...] = ()
    """Token sequences that stand between segments; they stay in the prompt and belong to none. See `mark_core`."""
    message_starts: tuple[tuple[int, ...], ...] = ()
    """Token sequences with which a chat message begins (for ChatML: the ids of `<|im_start|>`)."""
    content_chunks: ContentChunks | None = ContentChunks()
    """None: stretches without marks become one segment each."""
    min_segment_tokens: int = 32
    """Shorter ones are not worth an entry; their tokens are gap tokens."""

    def __post_init__(self) -> None:
        if not all(self.separators) or not all(self.message_starts):
            raise ValueError("a separator or message start needs at least one token")
