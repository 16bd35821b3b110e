"""Other ways to know who has what than the merged view, under the same planner: for comparisons."""

from collections.abc import Sequence

from nebula_protocol.events import WorkerKvEvent, WorkerPicEvents
from nebula_protocol.ids import DomainId, RequestId, WorkerId, WorkerWithDpRank
from nebula_protocol.layout import PromptLayout
from nebula_protocol.plan import Plan
from nebula_protocol.receipt import Receipt
from nebula_router.core.coverage import Coverage
from nebula_router.core.evidence import Applied
from nebula_router.core.plan_answer import PlanAnswer
from nebula_router.core.view import ClusterView

_KEPT_S = 600.0
"""What an optimistic view entered is gone after this long: only so that a router that runs for days does not grow."""


class _UncorrectedView(ClusterView):
    """What becomes of a dispatch is not heeded."""

    def postpone(self, request_id: RequestId, worker: WorkerWithDpRank, ready_at_s: float) -> None:
        pass

    def record_receipt(self, plan: Plan, receipt: Receipt, now_s: float) -> None:
        pass

    def record_helper_done(self, request_id: RequestId, worker: WorkerWithDpRank, now_s: float) -> None:
        pass

    def record_failure(self, request_id: RequestId, worker: WorkerWithDpRank) -> None:
        pass


class EventDrivenView(_UncorrectedView):
    """Events only: what was just dispatched is unknown until its events arrive (Dynamo's index, vLLM's production
    stack, llm-d)."""

    def record_dispatch(self, layout: PromptLayout, answer: PlanAnswer) -> None:
        pass


class PredictedView(_UncorrectedView):
    """Events, and beside them what dispatches are predicted to leave, taken as there at once until its time to live is
    over: Dynamo's predict-on-route (`router_predicted_ttl_secs`)."""

    _now_s = 0.0

    def coverage(
        self, layout: PromptLayout, domain_id: DomainId, holders: tuple[WorkerWithDpRank, ...], now_s: float
    ) -> Coverage:
        self._now_s = now_s
        return super().coverage(layout, domain_id, holders, now_s)

    def record_dispatch(self, layout: PromptLayout, answer: PlanAnswer) -> None:
        super().record_dispatch(layout, answer)
        request_id = answer.plan.request_id
        for worker in (answer.plan.target, *(helper.worker for helper in answer.helpers)):
            # As if it were done: no longer on its way, but there.
            ClusterView.record_helper_done(self, request_id, worker, self._now_s)


class OptimisticView(PredictedView):
    """Entered at dispatch and never corrected: no event is heeded (SGLang's router, Preble, and Dynamo without
    events)."""

    def __init__(self, *, max_entries: int, max_holders: int, ttl_s: float) -> None:
        """As `ClusterView`; `ttl_s` means nothing here."""
        super().__init__(max_entries=max_entries, max_holders=max_holders, ttl_s=_KEPT_S)

    def needs_state(self) -> frozenset[WorkerId]:
        """Those alone that cannot be placed on yet: a state corrects, too."""
        return frozenset(feed.worker_id for feed in self._intake.feeds() if feed.card is None)

    def apply_kv_events(self, events: Sequence[WorkerKvEvent], now_s: float) -> Applied:
        return Applied()

    def apply_pic_events(self, events: WorkerPicEvents, now_s: float) -> Applied:
        return Applied()
