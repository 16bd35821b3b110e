"""How prompts are divided into segments, as users set it."""

from pydantic import BaseModel, ConfigDict, Field

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
    chunk_min_tokens: int = Field(default=64, ge=8)
    """Shortest content-defined chunk."""
    chunk_mean_tokens: int = Field(default=256, ge=16)
    """Mean length of content-defined chunks."""
    chunk_max_tokens: int = Field(default=1024, ge=32)
    """Longest content-defined chunk."""
