"""How prompts are divided into segments, as users set it."""

from collections.abc import Callable, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nebula_protocol.cutting import SEAM_WINDOW_TOKENS, ContentChunks, CutterConfig
from nebula_protocol.mark_core import find_core

_MODEL_CONFIG = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CutSettings(BaseModel):
    """The router cuts with these; a worker too, for requests without a plan. Equal throughout one deployment."""

    model_config = _MODEL_CONFIG

    separators: tuple[str, ...] = ()
    """Texts that delimit segments."""
    message_starts: tuple[str, ...] = ("<|im_start|>",)
    """Texts with which a chat message begins."""
    min_segment_tokens: int = Field(default=32, ge=1)
    """Shorter stretches get no entry of their own."""
    content_chunks: bool = True
    """Divide long stretches without marks at content-defined places."""
    chunk_min_tokens: int = Field(default=64, ge=SEAM_WINDOW_TOKENS)
    """Shortest content-defined chunk."""
    chunk_mean_tokens: int = Field(default=256, ge=2 * SEAM_WINDOW_TOKENS)
    """Mean length of content-defined chunks, at least twice the shortest; stretches up to this length stay whole."""
    chunk_max_tokens: int = Field(default=1024, ge=2 * SEAM_WINDOW_TOKENS)
    """Longest content-defined chunk, at least the mean."""

    @model_validator(mode="after")
    def _check_chunk_lengths(self) -> Self:
        _chunks_of(self)
        return self


def make_cutter_config(settings: CutSettings, encode: Callable[[str], Sequence[int]]) -> CutterConfig:
    """The settings in token ids. `encode` must add no special tokens of its own, such as a begin-of-text.

    Raises:
        MarkError: a separator or message start without tokens by which it can be found.
    """
    return CutterConfig(
        separators=tuple(find_core(text, encode) for text in settings.separators),
        message_starts=tuple(find_core(text, encode) for text in settings.message_starts),
        content_chunks=_chunks_of(settings) if settings.content_chunks else None,
        min_segment_tokens=settings.min_segment_tokens,
    )


def _chunks_of(settings: CutSettings) -> ContentChunks:
    return ContentChunks(
        min_tokens=settings.chunk_min_tokens,
        mean_tokens=settings.chunk_mean_tokens,
        max_tokens=settings.chunk_max_tokens,
    )
