"""How reuse of passages that another worker computed is measured."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class FetchSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: Path = Path("models/SmolLM2-135M-Instruct")
    """Folder of the model that real workers serve."""
    passages: Path = Path("../shared/data/passages.jsonl.gz")
    """Texts to make prompts of: `.jsonl.gz`, an object with `id` and `text` a line."""
    config: Path = Path("configs/nebula-vllm-cpu.yaml")
    """Settings of `graphs:nebula` with real workers."""
    num_workers: int = Field(default=3, ge=2, le=64)
    """Prefill workers of that graph."""
    num_pairs: int = Field(default=6, ge=2, le=1000)
    """Fetched and computed prompts behind each median, in turns."""
    prompt_tokens: int = Field(default=4000, ge=256)
    """Of each prompt."""
    num_passages: int = Field(default=8, ge=2, le=64)
    """Of each prompt."""
    num_joined: int = Field(default=5, ge=2, le=1000)
    """Pairs of requests for the same unknown passages at the same time, on each graph."""
    num_in_front: int = Field(default=8, ge=1, le=64)
    """Other passages that the second one's worker computes first: of two idle workers that are asked at the same moment
    both compute, since they are done soonest then. As many as a prompt has, so that joining is clearly sooner."""
    sim_config: Path = Path("configs/nebula-2p1d-sim.yaml")
    """Settings of `graphs:nebula` with simulated workers."""
    sim_num_in_front: int = Field(default=12, ge=1, le=64)
    """The same there. More than a pair's passages: while simulated workers wait for copies, they compute what they
    can."""
    sim_time_scale: float = Field(default=4.0, gt=0, le=1000)
    """Real seconds per simulated second there, so that the machine's own milliseconds do not count."""
    start_s: float = Field(default=600.0, gt=0)
    """How long a graph may take to start."""
    answer_s: float = Field(default=300.0, gt=0)
    """How long an answer may take."""
