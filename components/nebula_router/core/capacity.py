"""How the stores' capacity is divided between prefix blocks and segments: towards the split that saves most time."""

from collections import deque
from dataclasses import dataclass

from nebula_protocol.events import SplitNow, SplitReview, SplitVerdict
from nebula_router.core.evidence import LostEntry
from nebula_router.core.prefix_runs import PrefixRun, find_runs
from nebula_router.core.prompt_use import PromptUse
from nebula_router.core.reuse_price import ReusePrice
from nebula_router.core.split_curve import NUM_STEPS, BestSplits, RequestCurve, SplitCurve, step_from, step_until
from nebula_router.core.store_classes import SegmentRoom, StoreClasses
from nebula_router.core.store_room import StoreRoom

_HORIZON_REQUESTS = 256.0
_MAX_MOVE_PER_REQUEST = 0.1 / 32
_TOLERANCE = 0.0005
"""Splits whose saved time differs by no more than this share of all prefill time are equally good."""
_MIN_GAIN = 0.002
"""Less than this share of all prefill time is not worth a move: the curve knows whether a segment is anywhere, not on
how many workers, and their copies are worth about as much where all segments fit once."""
_MIN_ERRORS = 2.0
"""Less than so many standard errors may be chance."""
_MAX_UNREAD_REVIEWS = 256
_MARGIN = 1 / 3
"""How far to keep from an end of the best splits behind which less is saved, as a share of their width."""


@dataclass(frozen=True, slots=True)
class GhostHits:
    """Tokens that were computed and that a ghost would have spared."""

    prefix_tokens: int = 0
    segment_tokens: int = 0

    def __add__(self, other: "GhostHits") -> "GhostHits":
        return GhostHits(self.prefix_tokens + other.prefix_tokens, self.segment_tokens + other.segment_tokens)


NO_GHOST_HITS = GhostHits()


@dataclass(slots=True)
class _Spared:
    """A `GhostHits` in the making."""

    prefix_tokens: int = 0
    segment_tokens: int = 0


class SplitController:
    """Learns the time that reuse would save at every split, and moves the split to where that is most.

    The law: a least-recently-used cache of any size holds the top of one and the same stack (Mattson et al. 1970), so
    one pass over the requests gives both classes' hits at every split. Dynacache (Cidon et al. 2015) divides memory by
    such curves; Cliffhanger (Cidon et al. 2016) climbs along their slope at the present split, which short lists of
    ghosts show. Here the stack reaches from what is held down to ghosts as deep as the stores are large: the curve is
    known everywhere, so that neither plateau nor cliff misleads, and where entries are really lost sets its scale, so
    that copies and the device tier are accounted for. Its values are seconds of prefill for both classes together:
    at each split a token counts once, as a prefix hit if the blocks have room enough, else as a segment hit if the
    segments have. So the top of the curve is the best static split, up to noise and change.

    Requests fade over some hundreds. Splits that differ by less than a tolerance are equally good, and among them the
    split stays where it is, except that it keeps off an end behind which the curve falls. From elsewhere it moves to
    them when the gain is more than chance. A move is bounded per request. What is learned does not depend on where the
    split stands, so the loop cannot swing.

    O(blocks / 8 + segments) per request; memory is bounded by `max_entries` for each class.
    """

    def __init__(self, *, prefix_ratio: float, window_requests: int, max_entries: int) -> None:
        self._prefix_ratio = prefix_ratio
        self._window_requests = window_requests
        self._classes = StoreClasses(max_entries=max_entries)
        self._curve = SplitCurve(horizon_requests=_HORIZON_REQUESTS)
        self._price: ReusePrice | None = None
        self._num_requests = 0
        self._window_hits = NO_GHOST_HITS
        self._now = SplitNow(prefix_ratio=prefix_ratio)
        self._unread: deque[SplitReview] = deque(maxlen=_MAX_UNREAD_REVIEWS)

    @property
    def prefix_ratio(self) -> float:
        """Share of each store that prefix blocks may claim; the rest is the segments'."""
        return self._prefix_ratio

    @property
    def now(self) -> SplitNow:
        """The split, and how it came about. One value from window to window."""
        return self._now

    def take_reviews(self) -> list[SplitReview]:
        """Of the windows that ended since the last call, the latest few hundred."""
        reviews = list(self._unread)
        self._unread.clear()
        return reviews

    def saved_ratios(self) -> list[float]:
        """Share of all prefill time that reuse would save at prefix shares 0/128 to 128/128."""
        return self._curve.saved_ratios()

    def set_fleet(self, room: StoreRoom, price: ReusePrice | None) -> None:
        """Workers came or went; there is no price without any."""
        self._classes.set_room(room)
        self._price = price

    def record_lost(self, lost: LostEntry) -> None:
        """Entries left the last cache that had them."""
        self._classes.record_lost(lost, self._prefix_ratio)

    def record_use(self, use: PromptUse) -> GhostHits:
        """Learns from a prompt that was prefilled, and moves the split when a window is full."""
        if self._price is None or not self._classes.room.store_tokens:
            return NO_GHOST_HITS
        curve = RequestCurve(self._price.compute_s(0, use.num_tokens))
        runs = find_runs(self._classes.blocks, use)
        hits = self._fill(curve, self._price, runs, self._classes.segment_rooms(use))
        self._curve.add(curve)
        self._classes.record_use(use)
        self._num_requests += 1
        self._window_hits += hits
        if self._num_requests % self._window_requests == 0:
            self._review()
        return hits

    def _fill(
        self, curve: RequestCurve, price: ReusePrice, runs: list[PrefixRun], segments: list[SegmentRoom]
    ) -> GhostHits:
        room, spared = self._classes.room, _Spared()
        stepped = [(run, step_from(run.room_tokens - room.device_tokens, room.store_tokens)) for run in runs]
        for run, from_step in stepped:
            curve.add_prefix(from_step, price.compute_s(run.start, run.end))
            spared.prefix_tokens += run.num_tokens * run.is_ghost
        for segment in segments:
            until_step = step_until(segment.tokens, room.store_tokens)
            loaded_to = segment.use.end
            loaded_from = min(segment.use.start + price.recompute_tokens, loaded_to)
            for run, from_step in stepped:
                if run.start < loaded_to and loaded_from < run.end:
                    start, end = max(loaded_from, run.start), min(loaded_to, run.end)
                    # A prefix hit is preferred to a segment hit on the same tokens.
                    curve.add_segment(min(until_step, from_step), price.segment_s(start, end))
                    self._count_spared(spared, run, segment, end - start)
        return GhostHits(spared.prefix_tokens, spared.segment_tokens)

    def _count_spared(self, spared: _Spared, run: PrefixRun, segment: SegmentRoom, num_tokens: int) -> None:
        """Tokens that either class could have spared count for the one that would have needed less more room."""
        if run.is_hit:
            return
        if segment.is_hit:
            spared.prefix_tokens -= num_tokens * run.is_ghost
        elif segment.is_ghost and not (run.is_ghost and self._needs_less(run, segment)):
            spared.prefix_tokens -= num_tokens * run.is_ghost
            spared.segment_tokens += num_tokens

    def _needs_less(self, run: PrefixRun, segment: SegmentRoom) -> bool:
        """Whether the blocks lack less room than the segment does."""
        room = self._classes.room
        prefix_tokens = room.device_tokens + room.store_tokens * self._prefix_ratio
        segment_tokens = room.store_tokens * (1 - self._prefix_ratio)
        return run.room_tokens - prefix_tokens <= segment.tokens - segment_tokens

    def _review(self) -> None:
        """Moves the split if that is worth it, and starts a new window."""
        best = self._curve.best_splits(self._prefix_ratio, tolerance=_TOLERANCE)
        present = self._prefix_ratio * NUM_STEPS
        is_best = best.first <= present <= best.last
        before, verdict = self._prefix_ratio, SplitVerdict.BEST_ALREADY
        if not is_best and best.gain_ratio < max(_MIN_GAIN, _MIN_ERRORS * best.error_ratio):
            verdict = SplitVerdict.NOT_SURE
        else:
            most = _MAX_MOVE_PER_REQUEST * self._window_requests
            step = min(max(self._target(best, present) / NUM_STEPS - self._prefix_ratio, -most), most)
            if step:
                self._prefix_ratio += step
                verdict = SplitVerdict.MOVED
        review = SplitReview(
            verdict=verdict,
            from_prefix_ratio=before,
            prefix_ratio=self._prefix_ratio,
            best_from_ratio=best.first / NUM_STEPS,
            best_to_ratio=best.last / NUM_STEPS,
            gain_ratio=best.gain_ratio,
            error_ratio=best.error_ratio,
            window_requests=self._window_requests,
            num_requests=self._num_requests,
            ghost_prefix_tokens=self._window_hits.prefix_tokens,
            ghost_segment_tokens=self._window_hits.segment_tokens,
        )
        self._window_hits = NO_GHOST_HITS
        self._unread.append(review)
        self._now = SplitNow(
            prefix_ratio=self._prefix_ratio,
            last_review=review,
            last_move=review if verdict is SplitVerdict.MOVED else self._now.last_move,
        )

    def _target(self, best: BestSplits, present: float) -> float:
        """The nearest of the best splits that keeps off their ends, in steps.

        A class that is known to earn nothing with its present room nor without any leaves all of it to the other, which
        may need more than was seen so far. It still has what the other does not use.
        """
        falls_below, falls_above = best.first > 0, best.last < NUM_STEPS
        if falls_above and not falls_below and self._classes.knows_blocks(self._prefix_ratio):
            return 0.0
        if falls_below and not falls_above and self._classes.knows_segments(self._prefix_ratio):
            return float(NUM_STEPS)
        margin = _MARGIN * (best.last - best.first)
        return min(max(present, best.first + margin * falls_below), best.last - margin * falls_above)
