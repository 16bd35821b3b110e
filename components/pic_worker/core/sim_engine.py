"""The engine as a state machine: requests in, timed steps and evidence out."""

from nebula_protocol.ids import RequestId, SegmentHash
from nebula_protocol.messages import FetchedSegment, FetchRequest
from nebula_protocol.receipt import FallbackReason
from pic_worker.core.effects import Effects, TicketId
from pic_worker.core.engine_config import EngineConfig
from pic_worker.core.engine_request import EngineRequest, HelperRequest
from pic_worker.core.event_log import StateSnapshot
from pic_worker.core.step_cost import LoadCost, StepCost
from pic_worker.core.step_plan import Turn


class SimEngine:
    """Iteration-level batching over a two-tier cache, in calibrated time.

    `now_s` is simulated time and never goes back. The driver loops: `next_step`; when it gives a step, wait
    `duration_s` and call `finish_step`; when it gives none, wait for any other call or for `next_deadline_s`.
    It carries out the `Effects` of every call before the next call.
    """

    def __init__(self, config: EngineConfig, step_cost: StepCost, load_cost: LoadCost) -> None:
        raise NotImplementedError

    def submit(self, request: EngineRequest, now_s: float) -> Effects:
        """Takes a prompt; fetches in the effects should start at once.

        Raises:
            DuplicateRequestError: a live request has this id.
            PromptRefusedError: it can never run here.
        """
        raise NotImplementedError

    def submit_helper(self, request: HelperRequest, now_s: float) -> Effects:
        """Takes segments to compute alone, after this worker's own prompts.

        Raises:
            DuplicateRequestError: a live request has this id.
            PromptRefusedError: it can never run here.
        """
        raise NotImplementedError

    def fetch_finished(
        self,
        request_id: RequestId,
        segment_hash: SegmentHash,
        outcome: FetchedSegment | FallbackReason,
        now_s: float,
    ) -> Effects:
        """A wanted segment has arrived with all its bytes, or will not. Unknown and ended requests are ignored."""
        raise NotImplementedError

    def next_step(self, now_s: float) -> Turn:
        """Forms the next step; gives none while one is in flight or nothing can run."""
        raise NotImplementedError

    def finish_step(self, now_s: float) -> Effects:
        """The step in flight is done: receipts, events, answers to waiting peers.

        Raises:
            NoStepError: none is in flight.
        """
        raise NotImplementedError

    def advance(self, now_s: float) -> Effects:
        """Ends what has timed out: prompt holds, leases, peers' joins."""
        raise NotImplementedError

    def next_deadline_s(self) -> float | None:
        """When `advance` and `next_step` are worth calling although nothing else happened."""
        raise NotImplementedError

    def abort(self, request_id: RequestId, now_s: float) -> Effects:
        """Forgets a request in any phase and frees all it holds. Unknown ids are ignored."""
        raise NotImplementedError

    def prompt_pulled(self, request_id: RequestId) -> int:
        """The decode worker has the prompt's KV: frees it. Returns its tokens, 0 when it is not here any more."""
        raise NotImplementedError

    def held_prompt_tokens(self, request_id: RequestId) -> int:
        """Tokens of a prefilled prompt whose KV still waits to be pulled; 0 when it is not here."""
        raise NotImplementedError

    def serve_fetch(self, request: FetchRequest, ticket: TicketId, now_s: float) -> Effects:
        """A peer asks for segments. The answer is in these effects, or in those of a later call if it must wait."""
        raise NotImplementedError

    def close_fetch(self, ticket: TicketId) -> None:
        """The transfer to the peer is over (or was given up): the lease on its segments ends."""
        raise NotImplementedError

    def set_split(self, prefix_ratio: float) -> None:
        """Moves the border between the store's classes; entries go only when room is wanted."""
        raise NotImplementedError

    def clear(self) -> Effects:
        """Drops every entry of both tiers that is not in use."""
        raise NotImplementedError

    def state_snapshot(self) -> StateSnapshot:
        """All that is held, with the last event ids that it contains."""
        raise NotImplementedError
