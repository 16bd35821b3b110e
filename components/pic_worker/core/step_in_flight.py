"""The step that runs now: who is in it, what it completes, and whether it has to wait for KV that comes late."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pic_worker.core.deadline import is_due
from pic_worker.core.request_state import EngineJob, PromptState
from pic_worker.core.step_cost import StepCost
from pic_worker.core.step_plan import StepPlan, StepShare
from pic_worker.core.stream import Production, overlapped_s


@dataclass(slots=True)
class StepInFlight:
    plan: StepPlan
    shares: Sequence[tuple[EngineJob, StepShare]]
    began_at_s: float
    last_layer_at_s: float = -math.inf
    """When the last layer is computed for which KV came during the step."""

    @classmethod
    def begin(
        cls, step_id: int, shares: Sequence[tuple[EngineJob, StepShare]], step_cost: StepCost, pieces: int, now_s: float
    ) -> "StepInFlight":
        num_tokens = sum(share.num_tokens for _, share in shares)
        attention_pairs = sum(share.attention_pairs for _, share in shares)
        load_s = sum(share.load_s for _, share in shares)
        plan = StepPlan(
            step_id=step_id,
            shares=tuple(share for _, share in shares),
            num_tokens=num_tokens,
            attention_pairs=attention_pairs,
            load_s=load_s,
            duration_s=overlapped_s(step_cost.step_s(num_tokens, attention_pairs), load_s, pieces),
        )
        return cls(plan, shares, now_s)

    @property
    def production(self) -> Production:
        """As it is planned."""
        return Production(self.began_at_s, self.began_at_s + self.plan.duration_s)

    def record_arrival(self, job: PromptState, pieces: int, now_s: float) -> None:
        """KV has come; if the step counts on it, its last piece is computed from now on."""
        if job.is_streaming and any(job is one for one, _ in self.shares):
            self.last_layer_at_s = now_s + self.plan.duration_s / pieces

    def stall_s(self, now_s: float) -> float:
        """How long the step takes from now on beyond its plan; infinite while KV has not come that it counts on."""
        if any(isinstance(job, PromptState) and job.is_streaming for job, _ in self.shares):
            return math.inf
        return 0.0 if is_due(self.last_layer_at_s, now_s) else self.last_layer_at_s - now_s

    def record_share(self, job: EngineJob, share: StepShare) -> None:
        """Puts the finished step into the job's ledger."""
        ledger = job.work.ledger
        if ledger.started_at_s is None:
            ledger.started_at_s = self.began_at_s
        ledger.num_steps += 1
        ledger.computed_tokens += share.num_tokens
        ledger.attention_pairs += share.attention_pairs
        ledger.step_tokens += self.plan.num_tokens
        ledger.step_pairs += self.plan.attention_pairs
        ledger.step_s += self.plan.duration_s
