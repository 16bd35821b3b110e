"""Who takes part in the next step, with how many tokens: iteration-level batching, after vLLM's scheduler."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from nebula_protocol.ids import RequestId
from pic_worker.core.compute_work import NO_WORK
from pic_worker.core.request_state import EngineJob, HelperState, PromptState
from pic_worker.core.step_plan import StepShare


class Admission(Protocol):
    def admit_prompt(self, state: PromptState, now_s: float) -> bool:
        """Gives the prompt blocks and work, or says no for now."""
        ...

    def admit_helper(self, state: HelperState, now_s: float) -> bool: ...

    def begin_share(self, job: EngineJob) -> None:
        """The job has taken its share of the step; those behind it in the same step may use what it will compute."""
        ...


@dataclass(slots=True)
class StepScheduler:
    """Running prompts first, then waiting ones in order of arrival, both in chunks, up to a budget of tokens.

    A waiting prompt that needs segments on their way is passed over; one that finds no room stops the queue, so that
    large prompts are not overtaken for ever. Helpers get what the budget has left over. If that was nothing for
    `helper_patience_s`, a share of the step is set aside for them.
    """

    max_step_tokens: int
    max_running: int
    """Most prompts in a step; helpers are counted apart."""
    helper_patience_s: float
    helper_share_ratio: float
    waiting: dict[RequestId, PromptState] = field(default_factory=dict)
    running: dict[RequestId, PromptState] = field(default_factory=dict)
    waiting_helpers: dict[RequestId, HelperState] = field(default_factory=dict)
    running_helpers: dict[RequestId, HelperState] = field(default_factory=dict)
    _helpers_served_at_s: float = float("-inf")

    def remove(self, request_id: RequestId) -> None:
        """Out of whatever queue it is in."""
        for queue in (self.waiting, self.running, self.waiting_helpers, self.running_helpers):
            queue.pop(request_id, None)

    def form(self, admission: Admission, now_s: float) -> list[tuple[EngineJob, StepShare]]:
        """The shares of the next step, empty when nothing can run."""
        set_aside = self._tokens_for_helpers(now_s)
        shares: list[tuple[EngineJob, StepShare]] = []
        left = _share_out(admission, self.running.values(), self.max_step_tokens - set_aside, shares)
        for prompt in list(self.waiting.values()):
            if left == 0 or len(self.running) >= self.max_running:
                break
            if prompt.is_blocked(now_s):
                continue
            if not admission.admit_prompt(prompt, now_s):
                break
            del self.waiting[prompt.request_id]
            self.running[prompt.request_id] = prompt
            left = _share_out(admission, (prompt,), left, shares)
        self._share_helpers(admission, left + set_aside, shares, now_s)
        return shares

    def _share_helpers(
        self, admission: Admission, budget: int, shares: list[tuple[EngineJob, StepShare]], now_s: float
    ) -> None:
        left = _share_out(admission, self.running_helpers.values(), budget, shares)
        for helper in list(self.waiting_helpers.values()):
            if left == 0 or len(self.running_helpers) >= self.max_running:
                break
            if admission.admit_helper(helper, now_s):
                del self.waiting_helpers[helper.request_id]
                self.running_helpers[helper.request_id] = helper
                left = _share_out(admission, (helper,), left, shares)
        if left < budget:
            self._helpers_served_at_s = now_s

    def _tokens_for_helpers(self, now_s: float) -> int:
        oldest = next(iter(self.running_helpers.values()), None) or next(iter(self.waiting_helpers.values()), None)
        if oldest is None:
            return 0
        hungry_since_s = max(oldest.submitted_at_s, self._helpers_served_at_s)
        is_hungry = now_s - hungry_since_s >= self.helper_patience_s
        return max(1, round(self.max_step_tokens * self.helper_share_ratio)) if is_hungry else 0


def _share_out(
    admission: Admission, jobs: Iterable[EngineJob], budget: int, shares: list[tuple[EngineJob, StepShare]]
) -> int:
    """Gives each job up to all it needs, in order; returns what is left of the budget."""
    for job in jobs:
        if budget == 0:
            break
        work = job.work
        taken = work.runs.take(budget)
        if taken.num_tokens == 0:
            continue
        budget -= taken.num_tokens
        share = StepShare(
            request_id=job.request_id,
            num_tokens=taken.num_tokens + work.probe.num_tokens,
            attention_pairs=taken.attention_pairs + work.probe.attention_pairs,
            load_s=work.load_s,
            is_helper=isinstance(job, HelperState),
        )
        work.load_s, work.probe = 0.0, NO_WORK
        shares.append((job, share))
        admission.begin_share(job)
    return budget
