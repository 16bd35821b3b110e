"""A prompt's way through the engine: submission, admission, progress by steps, release."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nebula_protocol.cost import LinkFit, attention_pairs
from nebula_protocol.ids import SegmentHash
from pic_worker.core.compute_work import NO_WORK, ComputeRuns, ComputeWork, Run, Taken, runs_between
from pic_worker.core.effects import FetchCommand
from pic_worker.core.prefix_cache import PrefixCache
from pic_worker.core.request_state import PromptState
from pic_worker.core.segment_resolver import SegmentResolver
from pic_worker.core.step_cost import LoadCost, StepCost
from pic_worker.core.veto import NO_VETO, vetoed_segments


@dataclass(frozen=True, slots=True)
class PromptPrefill:
    prefix: PrefixCache
    resolver: SegmentResolver
    step_cost: StepCost
    load_cost: LoadCost
    peer_link: LinkFit
    veto_ratio: float
    num_layers: int

    def begin(self, state: PromptState, *, engine_is_idle: bool, now_s: float) -> list[FetchCommand]:
        """Starts everything that can go on while the prompt waits for its turn."""
        if not state.segments:
            state.ready_at_s = now_s
            return []
        covered_tokens = self.prefix.match(state.chain, self._max_prefix_blocks(state)).num_blocks
        covered_tokens *= self.prefix.block_size_tokens
        # On a busy engine a slow fetch is hidden by the queue, and what is best is not clear.
        vetoed = self._vetoed(state, covered_tokens) if engine_is_idle else NO_VETO
        self.resolver.begin(state, covered_tokens, vetoed, now_s)
        return self.resolver.fetches(state)

    def admit(self, state: PromptState, now_s: float) -> bool:
        """Its turn: takes blocks for the whole prompt and decides what is reused. False while it does not fit."""
        size_tokens = self.prefix.block_size_tokens
        match = self.prefix.match(state.chain, self._max_prefix_blocks(state))
        num_blocks = -(-state.num_tokens // size_tokens)
        if not self.prefix.can_admit(match, num_blocks):
            return False
        prefix_tokens = match.num_blocks * size_tokens
        self.resolver.settle(state, prefix_tokens, now_s)
        state.blocks = self.prefix.admit(state.chain, state.request.tokens, state.request.lineage, match, num_blocks)
        loaded = [run for segment in state.segments for run in segment.loaded]
        state.work = ComputeWork(
            runs=ComputeRuns(runs_between(prefix_tokens, state.num_tokens, loaded)),
            load_s=len(match.host_hits) * size_tokens * self.load_cost.block_s_per_token
            + _loaded_tokens(state, loaded) * self.load_cost.segment_s_per_token,
            probe=probe_work(state, self.num_layers),
        )
        return True

    def begin_share(self, state: PromptState) -> None:
        """A share of a step is given to the prompt: those behind it in the same step may hit the blocks it completes.

        As in vLLM, which names blocks when it schedules them: a layer writes the KV of all tokens before it reads any.
        """
        if state.blocks is not None:
            self.prefix.name_blocks(state.blocks, self._num_complete(state) // self.prefix.block_size_tokens)

    def progress(self, state: PromptState, now_s: float) -> bool:
        """A step with the prompt in it is done. Returns whether all of the prompt is computed."""
        if state.blocks is None:
            return False
        self.resolver.finish_loading(state)
        self.prefix.finish_loading(state.blocks)
        self.resolver.store_complete(state, self._num_complete(state), now_s)
        return state.work.runs.frontier is None

    def release(self, state: PromptState, now_s: float) -> None:
        """Frees all that the prompt holds, in any phase."""
        self.resolver.forget(state, now_s)
        if state.blocks is not None:
            self.prefix.release(state.blocks)
            state.blocks = None

    def _num_complete(self, state: PromptState) -> int:
        """Leading tokens whose KV is there once all shares given so far are computed."""
        frontier = state.work.runs.frontier
        return state.num_tokens if frontier is None else frontier

    def _vetoed(self, state: PromptState, covered_tokens: int) -> frozenset[SegmentHash]:
        remote = [
            segment
            for segment in state.segments
            if segment.plan.end > covered_tokens
            and self.resolver.is_remote(state, segment)
            and not self.resolver.shelf.store.has_segment(segment.key)
        ]
        return vetoed_segments(
            state,
            remote,
            covered_tokens,
            step_cost=self.step_cost,
            load_cost=self.load_cost,
            peer_link=self.peer_link,
            veto_ratio=self.veto_ratio,
        )

    def _max_prefix_blocks(self, state: PromptState) -> int:
        # The block of the last token is computed even if it is cached: its logits choose the first answer token.
        return (state.num_tokens - 1) // self.prefix.block_size_tokens


def _loaded_tokens(state: PromptState, loaded: Sequence[Run]) -> int:
    """A probe compares what it computes with the KV of all reused tokens, so those computed again are loaded too."""
    if state.fusion.needs_probe:
        return sum(segment.hit_tokens for segment in state.segments)
    return sum(run.end - run.start for run in loaded)


def probe_work(state: PromptState, num_layers: int) -> Taken:
    """The probe over all reused tokens, as the tokens and pairs whose full computation takes as long."""
    ratio = state.fusion.probe_ratio(num_layers)
    if not ratio:
        return NO_WORK
    hits = [(segment.hit_tokens, segment.plan.start + segment.prefix_tokens) for segment in state.segments]
    num_tokens = math.ceil(sum(num_tokens for num_tokens, _ in hits) * ratio)
    return Taken(num_tokens, sum(attention_pairs(num_tokens, start) for num_tokens, start in hits) * ratio)
