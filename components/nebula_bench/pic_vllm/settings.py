"""What the benchmark of real workers measures."""

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class Part(StrEnum):
    SERVE = "serve"
    """Start, a chat whose passages return in another order, and times to the first token."""
    MEMORY = "memory"
    """Resident memory over many requests with more segments than fit."""
    EXACTNESS = "exactness"
    """The tests that hold reuse to full prefill."""


class PicVllmSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: Path
    """Folder of the model that the graph serves."""
    passages: Path
    """Texts to make prompts of: `.jsonl.gz`, an object with `id` and `text` a line."""
    config: Path = Path("configs/nebula-vllm-cpu.yaml")
    """Settings of `graphs:nebula`."""
    num_repeats: int = Field(default=5, ge=3, le=1000)
    """Prompts behind each median."""
    prompt_tokens: int = Field(default=4000, ge=256)
    """Of each measured prompt."""
    num_passages: int = Field(default=8, ge=2, le=64)
    """Of each measured prompt."""
    memory_requests: int = Field(default=2000, ge=20)
    """Requests over which memory may not grow."""
    memory_segment_tokens: int = Field(default=48, ge=32)
    """Of each of their two segments, none of which comes twice."""
    memory_store_tokens: int = Field(default=32_768, ge=1024)
    """Room of each worker's store meanwhile."""
    memory_in_flight: int = Field(default=4, ge=1, le=64)
    """Of these requests at any moment."""
    exactness_tests: tuple[str, ...] = (
        "tests/integration/pic_worker/test_worker_exact_recompute.py",
        "tests/integration/pic_worker/test_worker_engine_life.py",
        "tests/integration/pic_worker/test_worker_cacheblend_ranks.py",
        "tests/integration/pic_worker/test_pic_worker_rank_half.py",
    )
    """Files of pytest, from the project's folder."""
    start_s: float = Field(default=600.0, gt=0)
    """How long a graph may take to start."""
    answer_s: float = Field(default=300.0, gt=0)
    """How long an answer may take."""
    logs: Path | None = None
    """Folder for the graphs' logs; without one they go with their working directories."""
