"""A prompt's way through the engine: submission, admission, progress by steps, release."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nebula_protocol.cost import LinkFit, attention_pairs
from nebula_protocol.ids import Origin, SegmentHash
from pic_worker.core.compute_work import NO_WORK, ComputeRuns, ComputeWork, Run, Taken, runs_between
from pic_worker.core.effects import FetchCommand
from pic_worker.core.prefix_cache import PrefixCache
from pic_worker.core.request_state import PromptState, Standing
from pic_worker.core.segment_resolver import SegmentResolver, loaded_runs
from pic_worker.core.segment_source import Produced
from pic_worker.core.step_cost import LoadCost, StepCost
from pic_worker.core.store_entry import SegmentKey
from pic_worker.core.stream import Stream, overlapped_s
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
    max_step_tokens: int
    stream_pieces: int

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

    def stream(self, state: PromptState, segment_hash: SegmentHash, stream: Stream) -> None:
        """It is known when a fetched segment arrives: its turn may come as soon as no layer will wait."""
        if self.stream_pieces == 1 or state.is_settled:
            return
        self.resolver.stream(state, segment_hash, stream)
        waiting = [segment for segment in state.segments if segment.is_waiting]
        streams = [segment.stream for segment in waiting if segment.stream is not None]
        if streams and len(streams) == len(waiting):
            step_s = self._own_step_s(state)
            state.usable_at_s = max(one.usable_at_s(step_s, self.stream_pieces) for one in streams)

    def _own_step_s(self, state: PromptState) -> float:
        """How long its first step takes at least: nobody else in it, and all reused that may be."""
        match = self.prefix.match(state.chain, self._max_prefix_blocks(state))
        prefix_tokens = match.num_blocks * self.prefix.block_size_tokens
        last = state.num_tokens - 1
        reused = [
            Run(max(segment.plan.start, prefix_tokens), min(segment.plan.end, last))
            for segment in state.segments
            if segment.standing is not Standing.LOOK_UP and segment.standing is not Standing.DONE
        ]
        loaded = [
            run
            for span in reused
            if span.start < span.end
            for run in loaded_runs(state.fusion, *span, state.fusion.recomputed_tokens(span.end - span.start))
            if run.start < run.end
        ]
        first = ComputeRuns(runs_between(prefix_tokens, state.num_tokens, loaded)).take(self.max_step_tokens)
        load_s = sum(run.end - run.start for run in loaded) * self.load_cost.segment_s_per_token
        compute_s = self.step_cost.step_s(first.num_tokens, first.attention_pairs)
        return overlapped_s(compute_s, load_s, self.stream_pieces)

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

    def produced(self, state: PromptState) -> dict[SegmentKey, Produced]:
        """Segments that are stored when all shares given so far are computed."""
        return {
            segment.key: Produced(segment.token_bytes, Origin.IN_CONTEXT)
            for segment in self.resolver.newly_complete(state, self._num_complete(state))
            if segment.plan.start > 0
        }

    def progress(self, state: PromptState, now_s: float) -> bool:
        """A step with the prompt in it is done. Returns whether all of the prompt is computed."""
        if state.blocks is None:
            return False
        broken_at = self.resolver.drop_broken(state)
        if broken_at is not None:
            self._compute_again(state, broken_at)
        self.resolver.finish_loading(state)
        self.prefix.finish_loading(state.blocks)
        self.resolver.store_complete(state, self._num_complete(state), now_s)
        return state.work.runs.frontier is None

    def _compute_again(self, state: PromptState, start: int) -> None:
        """As vLLM does when KV fails to load: what was computed behind it is void. Blocks keep their names."""
        frontier = state.work.runs.frontier
        start = start if frontier is None else min(start, frontier)
        loaded = [
            Run(max(run.start, start), run.end)
            for segment in state.segments
            for run in segment.loaded
            if run.end > start
        ]
        state.work.runs = ComputeRuns(runs_between(start, state.num_tokens, loaded))

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
