"""Why a request went where it went, in words."""

from collections.abc import Iterable, Iterator

from nebula_cli.worker_name import WorkerNames
from nebula_protocol.events import Candidate, Decision
from nebula_protocol.plan import Source

_EVEN_RATIO = 0.01
"""Times that differ by less of the completion are the same to a reader."""
_MAX_OTHERS = 3
_HELPED = Source.COMPUTE_AT


def explain_choice(decision: Decision, names: WorkerNames) -> Iterator[str]:
    """Sentences: the chosen worker, what its helpers do, and the workers that could have been taken instead."""
    if not decision.candidates:
        yield f"{names.name(decision.plan.target)} was chosen; the decision tells of no candidates"
        return
    chosen, *others = decision.candidates
    yield _chosen(decision, chosen, names)
    yield from _helped(decision, names)
    yield _reason(decision, chosen, others, names)
    for other in _notable(others):
        yield _other(decision, chosen, other, names)


def duration(seconds: float) -> str:
    """`0`, `0.42 ms`, `4.2 ms`, `42 ms`, `1.24 s`."""
    milliseconds = 1e3 * seconds
    if not seconds:
        return "0"
    if milliseconds < 1:
        return f"{milliseconds:.2f} ms"
    if milliseconds < 9.95:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms" if milliseconds < 999.5 else f"{seconds:.2f} s"


def score_of(candidate: Candidate) -> float:
    """What was compared; of older routers, which do not tell it, the completion alone."""
    return candidate.estimate.completion_s if candidate.score_s is None else candidate.score_s


def cost_to_others(candidate: Candidate) -> float:
    return score_of(candidate) - candidate.estimate.completion_s


def found_tokens(candidate: Candidate) -> int:
    return candidate.prefix_hit_tokens + candidate.segment_hit_tokens


def helped_tokens(decision: Decision) -> int:
    return sum(segment.end - segment.start for segment in decision.plan.segments if segment.source is _HELPED)


def _chosen(decision: Decision, chosen: Candidate, names: WorkerNames) -> str:
    estimate, even_s = chosen.estimate, _even_s(chosen)
    return (
        f"{names.name(chosen.worker)} {_free(chosen, even_s)}, {_has(decision, chosen)}, "
        f"computes for {duration(estimate.compute_s)} and is done in {duration(estimate.completion_s)}"
        f"{_arrival(chosen, even_s)}"
    )


def _arrival(chosen: Candidate, even_s: float) -> str:
    estimate = chosen.estimate
    if estimate.arrive_in_s <= even_s:
        return ""
    in_turn_s = estimate.arrive_in_s + estimate.compute_s
    meanwhile = ", layer by layer while it computes" if in_turn_s > estimate.completion_s + even_s else ""
    return f"; the last segment arrives in {duration(estimate.arrive_in_s)}{meanwhile}"


def _helped(decision: Decision, names: WorkerNames) -> Iterator[str]:
    helpers = {
        segment.from_worker: None
        for segment in decision.plan.segments
        if segment.source is _HELPED and segment.from_worker is not None
    }
    if not helpers:
        return
    listed = ", ".join(map(names.name, helpers))
    by = "one helper" if len(helpers) == 1 else f"{len(helpers)} helpers"
    yield f"meanwhile {helped_tokens(decision):,} of the tokens are computed for it by {by}: {listed}"


def _reason(decision: Decision, chosen: Candidate, others: list[Candidate], names: WorkerNames) -> str:
    name = names.name(chosen.worker)
    if decision.is_bound:
        return f"the client chose {name}"
    if not others:
        known = f" of {decision.num_workers:,}" if decision.num_workers > 1 else ""
        return f"no other worker{known} could take the request"
    best = min(others, key=score_of)
    if score_of(chosen) > score_of(best) + 1e-9:
        return (
            f"{names.name(best.worker)} is as good within the estimate's own error; "
            f"of equally good workers the one that was given least work lately is taken"
        )
    soonest = min(other.estimate.completion_s for other in others)
    if chosen.estimate.completion_s > soonest + _even_s(chosen):
        return f"{name} is not the first to be done, but what the request costs others there is so much less"
    return "no other worker would be done sooner, counting what the request costs others that wait"


def _notable(others: Iterable[Candidate]) -> list[Candidate]:
    """The next best, the one that is free first and the one that has most, each once."""
    others = list(others)
    if not others:
        return []
    picked = (
        min(others, key=score_of),
        min(others, key=lambda other: other.estimate.free_in_s),
        max(others, key=found_tokens),
    )
    return list({other.worker: other for other in picked}.values())[:_MAX_OTHERS]


def _other(decision: Decision, chosen: Candidate, other: Candidate, names: WorkerNames) -> str:
    one, two, even_s = chosen.estimate, other.estimate, _even_s(chosen)
    more_cost_s = cost_to_others(other) - cost_to_others(chosen)
    told = [
        (more if more_s > 0 else less).format(duration(abs(more_s)))
        for more_s, more, less in (
            (two.arrive_in_s - one.arrive_in_s, "wait {} longer for segments", "wait {} less for segments"),
            (two.compute_s - one.compute_s, "compute {} longer", "compute {} less"),
            (two.completion_s - one.completion_s, "be done {} later", "be done {} sooner"),
            (more_cost_s, "cost others {} more", "cost others {} less"),
        )
        if abs(more_s) > even_s
    ]
    would = f"would {_joined(told)}" if told else "would be done at the same time"
    return f"{names.name(other.worker)} {_free(other, even_s)} and {_has(decision, other)}: it {would}"


def _even_s(chosen: Candidate) -> float:
    return _EVEN_RATIO * chosen.estimate.completion_s


def _free(candidate: Candidate, even_s: float) -> str:
    free_in_s = candidate.estimate.free_in_s
    return f"is free in {duration(free_in_s)}" if free_in_s > even_s else "is free at once"


def _has(decision: Decision, candidate: Candidate) -> str:
    own = found_tokens(candidate) - candidate.copied_tokens
    copied = f" and gets {candidate.copied_tokens:,} from others" if candidate.copied_tokens else ""
    return f"has {own:,} of {decision.prompt_tokens:,} tokens{copied}"


def _joined(parts: list[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
