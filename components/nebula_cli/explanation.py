"""A decision as people read it: the request, its segments, the workers that were compared, and why."""

from collections.abc import Iterator
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nebula_cli.choice_words import (
    cost_to_others,
    duration,
    explain_choice,
    found_tokens,
    helped_tokens,
    score_of,
)
from nebula_cli.split_words import describe_split
from nebula_cli.worker_name import WorkerNames
from nebula_protocol.events import Candidate, Decision
from nebula_protocol.plan import Source

_HASH_DIGITS = 8


def render_decision(decision: Decision, published_at_ms: int, names: WorkerNames) -> RenderableType:
    parts: list[RenderableType] = [_title(decision, published_at_ms)]
    if decision.plan.segments:
        parts.append(_segments(decision, names))
    if decision.candidates:
        parts.append(_candidates(decision, names))
    return Group(*parts, _words(decision, names), Text())


def _title(decision: Decision, published_at_ms: int) -> Text:
    time_of_day = datetime.fromtimestamp(published_at_ms / 1e3).strftime("%H:%M:%S.%f")[:-3]
    said = [f"{decision.prompt_tokens:,} tokens"]
    if not decision.plan.pic:
        said.append("exact: no segments")
    if decision.attempt > 1:
        said.append(f"attempt {decision.attempt}, after a worker was lost")
    said.append(f"decided in {duration(decision.decision_us / 1e6)}")
    return Text.assemble((time_of_day, "dim"), "  request ", (decision.request_id, "bold"), f": {'; '.join(said)}")


def _segments(decision: Decision, names: WorkerNames) -> Table:
    table = Table(box=SIMPLE_HEAD, title=f"Segments ({len(decision.plan.segments)})", title_justify="left")
    for heading in ("#", "from", "to", "tokens"):
        table.add_column(heading, justify="right")
    for heading in ("segment", "source"):
        table.add_column(heading)
    for index, segment in enumerate(decision.plan.segments):
        table.add_row(
            str(index + 1),
            f"{segment.start:,}",
            f"{segment.end:,}",
            f"{segment.end - segment.start:,}",
            f"{segment.segment_hash.hex()[:_HASH_DIGITS]}…",
            _source(decision, index, names),
        )
    return table


def _source(decision: Decision, index: int, names: WorkerNames) -> str:
    plan = decision.plan
    segment = plan.segments[index]
    other = "" if segment.from_worker is None else names.name(segment.from_worker)
    match segment.source:
        # The last token is always computed, so a segment that ends the prompt is covered one token earlier.
        case Source.LOCAL if min(segment.end, decision.prompt_tokens - 1) <= plan.prefix_hit_tokens:
            return "prefix"
        case Source.LOCAL:
            return "local"
        case Source.FETCH:
            return f"fetch from {other}"
        case Source.JOIN if segment.from_worker == plan.target:
            return "join: another request computes it there"
        case Source.JOIN:
            return f"join at {other}"
        case Source.COMPUTE_AT:
            return f"compute at {other}"
        case Source.COMPUTE if index in decision.unknown_segments:
            return "compute, nobody has it"
        case Source.COMPUTE:
            return "compute, though a copy is known"


def _candidates(decision: Decision, names: WorkerNames) -> Table:
    known = f" of {decision.num_workers}" if decision.num_workers else ""
    title = f"Candidates ({len(decision.candidates)}{known})"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("worker")
    for heading in (
        "prefix",
        "segments",
        "copied",
        "to compute",
        "free in",
        "arrive in",
        "compute",
        "done in",
        "others wait",
        "score",
    ):
        table.add_column(heading, justify="right")
    for place, candidate in enumerate(decision.candidates):
        table.add_row(*_candidate(decision, candidate, names, is_chosen=not place), style=None if place else "bold")
    return table


def _candidate(decision: Decision, candidate: Candidate, names: WorkerNames, *, is_chosen: bool) -> Iterator[str]:
    estimate = candidate.estimate
    yield f"{'> ' if is_chosen else '  '}{names.name(candidate.worker)}"
    helped = helped_tokens(decision) if is_chosen else 0
    to_compute = decision.prompt_tokens - found_tokens(candidate) - helped
    for num_tokens in (candidate.prefix_hit_tokens, candidate.segment_hit_tokens, candidate.copied_tokens, to_compute):
        yield f"{num_tokens:,}"
    yield duration(estimate.free_in_s)
    yield duration(estimate.arrive_in_s)
    yield duration(estimate.compute_s)
    yield duration(estimate.completion_s)
    yield "" if candidate.score_s is None else duration(cost_to_others(candidate))
    yield duration(score_of(candidate))


def _words(decision: Decision, names: WorkerNames) -> Table:
    table = Table.grid(padding=(0, 2))
    for place, sentence in enumerate(explain_choice(decision, names)):
        table.add_row(Text("" if place else "Why", "bold"), sentence)
    table.add_row(Text("Split", "bold"), describe_split(decision.split))
    return table
