"""What the quality benchmark measures."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, cacheblend, legolink
from pic_worker.settings import FusionSetting

FUSIONS = (
    NO_FUSION,
    *(legolink(leading_tokens) for leading_tokens in (8, 16, 32)),
    *(cacheblend(ratio) for ratio in (0.05, 0.15, 0.3)),
    FULL_FUSION,
)


class QualitySettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: Path
    """Folder of the model, in Hugging Face's format."""
    passages: Path
    """Texts to make prompts of: `.jsonl.gz`, an object with `id` and `text` a line."""
    num_prompts: int = Field(default=100, ge=2, le=100_000)
    """Over all seeds."""
    seeds: tuple[int, ...] = Field(default=(1, 2), min_length=1)
    """Each draws an equal share of the prompts."""
    min_passages: int = Field(default=2, ge=2, le=64)
    """Fewest passages in a prompt. One alone has no other order."""
    max_passages: int = Field(default=10, ge=2, le=64)
    """Most passages in a prompt."""
    min_segment_tokens: int = Field(default=128, ge=16)
    """Shortest passage; shorter texts are left out."""
    max_segment_tokens: int = Field(default=512, ge=16)
    """Longest passage; longer texts are cut."""
    num_answer_tokens: int = Field(default=32, ge=1, le=1024)
    """Greedy tokens that are compared."""
    fusions: tuple[FusionSetting, ...] = FUSIONS
    """What is computed again of reused segments."""
    full_every: int = Field(default=10, ge=1)
    """Of so many prompts, one is also computed again in full, which must give the answer of full prefill exactly."""
    num_resamples: int = Field(default=4000, ge=100, le=1_000_000)
    """Of the bootstrap behind each confidence interval."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Numbers that the model computes with; auto: as its configuration says."""

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        if self.max_passages < self.min_passages:
            raise ValueError("max_passages is under min_passages")
        if self.max_segment_tokens < self.min_segment_tokens:
            raise ValueError("max_segment_tokens is under min_segment_tokens")
        if self.num_prompts % len(self.seeds):
            raise ValueError(f"{self.num_prompts} prompts cannot be shared equally by {len(self.seeds)} seeds")
        return self

    @property
    def prompts_per_seed(self) -> int:
        return self.num_prompts // len(self.seeds)
