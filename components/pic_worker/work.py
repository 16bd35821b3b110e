"""What workers are asked for and what they answer, whatever engine computes it."""

from collections.abc import Mapping
from dataclasses import dataclass

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.plan import HelperTask, Plan
from nebula_protocol.tokens import TokenArray


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """A request at this worker: with a plan, with a helper task, or with neither (behind Dynamo's own router)."""

    tokens: TokenArray
    max_tokens: int | None
    options: RequestOptions
    plan: Plan | None
    helper_task: HelperTask | None
    body: Mapping[str, object]
    """The request as it came: an engine that samples reads its options there."""
