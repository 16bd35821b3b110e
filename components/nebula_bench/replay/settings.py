"""How a trace is replayed."""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nebula_bench.pseudo_tokens import PseudoVocabulary


class Marks(StrEnum):
    """How the router learns where the trace's segments lie."""

    SPANS = "spans"
    """An annotation with each request names them."""
    NONE = "none"
    """It does not; the router cuts by its other marks."""


class ReplaySettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    url: str
    """The frontend's, without /v1."""
    model: str | None = None
    """Name of the model to ask for. Without one: the only one that the frontend serves."""
    rate_per_s: float = Field(gt=0, le=100_000)
    """Mean arrivals a second, in the trace's time."""
    seed: int = Field(default=0, ge=0)
    """Of the arrival times."""
    warmup_requests: int = Field(default=0, ge=0)
    """The first requests, left out of every statistic but the errors."""
    max_tokens: int = Field(default=1, ge=1)
    """Output tokens of each request."""
    concurrency_limit: int | None = Field(default=None, ge=1)
    """Most requests in flight; later ones wait in the client, and their wait does not count as theirs."""
    timeout_s: float = Field(default=120.0, gt=0)
    """After this long a request has failed, in the trace's time."""
    time_scale: float = Field(default=1.0, gt=0, le=1_000)
    """Arrivals are this much further apart and reported times divided by it: the workers' `sim.time_scale`."""
    marks: Marks = Marks.SPANS
    """How the router learns where the trace's segments lie."""
    annotations: tuple[str, ...] = ()
    """Further annotations of every request, such as `nebula.pic=off`."""
    first_token_id: int = Field(default=PseudoVocabulary().first_id, ge=0)
    """Smallest id of the pseudo tokens."""
    end_token_id: int = Field(default=PseudoVocabulary().end_id, ge=1)
    """One more than the largest id of the pseudo tokens."""

    @model_validator(mode="after")
    def _check_token_ids(self) -> Self:
        if self.first_token_id >= self.end_token_id:
            raise ValueError("first_token_id must be smaller than end_token_id")
        return self

    @property
    def vocabulary(self) -> PseudoVocabulary:
        return PseudoVocabulary(self.first_token_id, self.end_token_id)
