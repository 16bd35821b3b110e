"""How the stores are divided between prefix blocks and segments, in words."""

from nebula_protocol.events import SplitNow, SplitReview, SplitVerdict


def describe_review(review: SplitReview) -> str:
    """What became of the split behind a window of requests, and why."""
    return f"{_what_became(review)}; {describe_ghosts(review)}"


def describe_ghosts(review: SplitReview) -> str:
    return (
        f"ghost hits in {review.window_requests:,} requests: "
        f"prefix {review.ghost_prefix_tokens:,}, segment {review.ghost_segment_tokens:,} tokens"
    )


def describe_split(split: SplitNow | None) -> str:
    """How the stores are divided now, what the last window said, and when that last changed."""
    if split is None:
        return "the workers' own setting; the router does not move it"
    now = f"{_percent(split.prefix_ratio)} of each store for prefix blocks, the rest for segments"
    review, move = split.last_review, split.last_move
    if review is None:
        return f"{now}; no window of requests is full yet"
    if move is None or move == review:
        return f"{now}; {describe_review(review)}"
    when = f"last {_moved(move)} at request {move.num_requests:,} ({describe_ghosts(move)})"
    return f"{now}; {describe_review(review)}; {when}"


def _what_became(review: SplitReview) -> str:
    better = (
        f"with {_best(review)} for prefix blocks reuse would save {_percent(review.gain_ratio)} of prefill time more"
    )
    match review.verdict:
        case SplitVerdict.MOVED:
            was_best = review.best_from_ratio <= review.from_prefix_ratio <= review.best_to_ratio
            return f"{_moved(review)}: {'as good, and further from where less is saved' if was_best else better}"
        case SplitVerdict.BEST_ALREADY:
            return f"stays at {_percent(review.prefix_ratio)}: no other split would save more"
        case SplitVerdict.NOT_SURE:
            error = _percent(review.error_ratio)
            return f"stays at {_percent(review.prefix_ratio)}: {better}, too little or chance (standard error {error})"


def _moved(review: SplitReview) -> str:
    return f"moved from {_percent(review.from_prefix_ratio)} to {_percent(review.prefix_ratio)}"


def _best(review: SplitReview) -> str:
    if review.best_from_ratio == review.best_to_ratio:
        return _percent(review.best_from_ratio)
    return f"{_percent(review.best_from_ratio)} to {_percent(review.best_to_ratio)}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"
