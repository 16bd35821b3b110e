"""`nebula explain` on what `nebula events --json` wrote, as it is typed."""

from pathlib import Path

import msgspec
import pytest
from support.told_decisions import candidate, decision, lines_of, message_of, segment
from typer.testing import CliRunner, Result

from nebula_cli.__main__ import app
from nebula_cli.errors import CliError
from nebula_cli.event_json import format_json, parse_json
from nebula_cli.event_record import decode_message
from nebula_protocol.errors import DecodeError
from nebula_protocol.events import (
    Decision,
    PicEvent,
    SegmentRemoved,
    SplitNow,
    SplitReview,
    SplitVerdict,
    WorkerPicEvents,
)
from nebula_protocol.ids import DomainId, EventId, RemovalReason, SegmentHash, WorkerEpoch, WorkerId
from nebula_protocol.plan import Source
from nebula_protocol.subjects import Topic

SEGMENTS = (
    segment(0, 64, Source.LOCAL),
    segment(64, 364, Source.LOCAL),
    segment(364, 664, Source.FETCH, 2),
    segment(664, 964, Source.JOIN, 2),
    segment(964, 1_064, Source.JOIN, 1),
    segment(1_064, 1_364, Source.COMPUTE_AT, 3),
    segment(1_364, 1_400, Source.COMPUTE),
    segment(1_400, 1_484, Source.COMPUTE),
)
FIRST = decision(
    candidate(1, free_in_ms=120, arrive_in_ms=130, compute_ms=30, prefix=64, segments=1_000, copied=600, cost_ms=12),
    candidate(2, compute_ms=1_430),
    segments=SEGMENTS,
    unknown_segments=(5, 7),
)
SECOND = decision(candidate(2, compute_ms=50), request_id="second", pic=False, attempt=2)


def explain(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)], input=stdin, catch_exceptions=False)


def decided(*decisions: Decision) -> str:
    return lines_of(*(message_of(Topic.DECISIONS, one) for one in decisions))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """An event of a worker, and two decisions."""
    data = SegmentRemoved(segment_hash=SegmentHash(bytes(16)), domain_id=DomainId("d"), reason=RemovalReason.CAPACITY)
    event = WorkerPicEvents(
        worker_id=WorkerId(1), epoch=WorkerEpoch(1), events=(PicEvent(event_id=EventId(0), data=data),)
    )
    path = tmp_path / "events.jsonl"
    path.write_text(lines_of(message_of(Topic.PIC_EVENTS, event, component="prefill")) + decided(FIRST, SECOND))
    return path


def rows_of(output: str, first: str) -> list[list[str]]:
    """The cells of the lines whose first cell is this."""
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in output.splitlines()]
    return [row for row in cells if row and row[0] == first]


def test_a_request_is_told_with_its_tokens_and_the_time_of_the_decision(recorded: Path) -> None:
    output = explain("--file", recorded).output
    assert "request request-1: 1,484 tokens; decided in 0.41 ms" in output
    assert "request second: 1,484 tokens; exact: no segments; attempt 2, after a worker was lost" in output


def test_each_segment_is_told_with_where_it_comes_from(recorded: Path) -> None:
    output = explain("request-1", "--file", recorded).output
    sources = [rows_of(output, str(number))[0][-1] for number in range(1, 9)]
    assert sources == [
        "prefix",
        "local",
        "fetch from 000002",
        "join at 000002",
        "join: another request computes it there",
        "compute at 000003",
        "compute, though a copy is known",
        "compute, nobody has it",
    ]
    assert rows_of(output, "3")[0][1:4] == ["364", "664", "300"]


def test_the_candidates_are_told_with_the_parts_of_their_estimates(recorded: Path) -> None:
    output = explain("request-1", "--file", recorded).output
    assert "Candidates (2 of 7)" in output
    # 1,484 - 64 - 1,000 - 300 tokens that a helper computes; worker 1 is known by name from its own event.
    chosen = ["> prefill/000001", "64", "1,000", "600", "120", "120 ms", "130 ms", "30 ms", "160 ms", "12 ms", "172 ms"]
    assert rows_of(output, chosen[0]) == [chosen]
    other = ["000002", "0", "0", "0", "1,484", "0", "0", "1.43 s", "1.43 s", "0", "1.43 s"]
    assert rows_of(output, other[0])[0] == other


def test_the_reason_is_told_in_words(recorded: Path) -> None:
    output = " ".join(explain("request-1", "--file", recorded).output.split())
    assert "prefill/000001 is free in 120 ms, has 464 of 1,484 tokens and gets 600 from others" in output
    assert (
        "000002 is free at once and has 0 of 1,484 tokens: it would wait 130 ms less for segments, compute 1.40 s"
        in output
    )


def test_only_the_request_that_is_named_is_explained_and_a_beginning_of_its_id_is_enough(recorded: Path) -> None:
    output = explain("seco", "--file", recorded).output
    assert "request second:" in output
    assert "request-1" not in output


@pytest.mark.parametrize("answer_id", ["cmpl-second", "chatcmpl-second"])
def test_the_id_of_the_answer_names_the_request_too(recorded: Path, answer_id: str) -> None:
    output = explain(answer_id, "--file", recorded).output
    assert "request second:" in output
    assert "request-1" not in output


def test_no_more_decisions_are_explained_than_were_asked_for(recorded: Path) -> None:
    output = explain("--count", "1", "--file", recorded).output
    assert "request request-1:" in output
    assert "request second:" not in output


def test_standard_input_is_read_too() -> None:
    assert "request second:" in explain("--file", "-", stdin=decided(SECOND)).output


def test_as_json_the_decision_is_whole_and_the_words_are_beside_it(recorded: Path) -> None:
    first, second = map(msgspec.json.decode, explain("--json", "--file", recorded).output.splitlines())
    assert first["decision"]["candidates"][0]["copied_tokens"] == 600
    assert first["why"][0].startswith("prefill/000001 is free in 120 ms")
    assert second["decision"]["request_id"] == "second"
    assert second["split"] == "the workers' own setting; the router does not move it"


def test_a_line_that_is_no_event_is_told_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"topic": "decisions"}\n\n\xff\xfe\n' + decided(SECOND).encode())
    result = explain("--file", path)
    assert "request second:" in result.output
    assert "skipped line 1" in result.stderr
    assert "skipped line 3" in result.stderr


def test_a_request_of_which_nothing_was_recorded_ends_with_code_1(recorded: Path) -> None:
    with pytest.raises(CliError, match=r"no decision about a request 'third' in .*jsonl") as caught:
        explain("third", "--file", recorded)
    assert caught.value.exit_code == 1


def test_a_file_that_cannot_be_read_ends_with_code_2(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="cannot be read") as caught:
        explain("--file", tmp_path / "none")
    assert caught.value.exit_code == 2


def test_without_a_graph_that_runs_here_the_server_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="no NATS server is known"):
        explain("--working-dir", tmp_path)


# ---- the split ----

MOVE = SplitReview(
    verdict=SplitVerdict.MOVED,
    from_prefix_ratio=0.3,
    prefix_ratio=0.2,
    best_from_ratio=0.0,
    best_to_ratio=0.125,
    gain_ratio=0.042,
    error_ratio=0.011,
    window_requests=32,
    num_requests=64,
    ghost_prefix_tokens=128,
    ghost_segment_tokens=4_096,
)
STAY = msgspec.structs.replace(
    MOVE,
    verdict=SplitVerdict.BEST_ALREADY,
    from_prefix_ratio=0.2,
    num_requests=96,
    ghost_prefix_tokens=0,
    ghost_segment_tokens=512,
)
NOW = "20.0 % of each store for prefix blocks, the rest for segments"
MOVED = (
    "moved from 30.0 % to 20.0 %: with 0.0 % to 12.5 % for prefix blocks reuse would save 4.2 % of prefill time more; "
    "ghost hits in 32 requests: prefix 128, segment 4,096 tokens"
)
STAYED = (
    "stays at 20.0 %: no other split would save more; ghost hits in 32 requests: prefix 0, segment 512 tokens; "
    "last moved from 30.0 % to 20.0 % at request 64 (ghost hits in 32 requests: prefix 128, segment 4,096 tokens)"
)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (SplitNow(prefix_ratio=0.2), f"{NOW}; no window of requests is full yet"),
        (SplitNow(prefix_ratio=0.2, last_review=MOVE, last_move=MOVE), f"{NOW}; {MOVED}"),
        (SplitNow(prefix_ratio=0.2, last_review=STAY, last_move=MOVE), f"{NOW}; {STAYED}"),
        (SplitNow(prefix_ratio=0.2, last_review=STAY), f"{NOW}; {STAYED.partition('; last')[0]}"),
    ],
)
def test_the_split_is_told_with_its_last_change_and_the_ghost_hits(split: SplitNow, said: str) -> None:
    told = decision(candidate(1, compute_ms=50), split=split)
    as_json = msgspec.json.decode(explain("--json", "--file", "-", stdin=decided(told)).output)
    assert as_json["split"] == said
    as_table = " ".join(explain("--file", "-", stdin=decided(told)).output.split())
    assert as_table.endswith(f"Split {said}")


# ---- lines of events and back ----


def test_a_line_of_events_gives_back_the_event() -> None:
    for message in (
        message_of(Topic.DECISIONS, FIRST),
        message_of(Topic.SPLITS, MOVE),
        message_of(Topic.DECISIONS, decision(candidate(2**64 - 3, compute_ms=1))),
    ):
        (record,) = decode_message(*message)
        assert parse_json(format_json(record)) == record


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"time": "now"}', '{"topic": "decisions", "decision": 3}'])
def test_a_line_of_something_else_is_refused(line: str) -> None:
    with pytest.raises(DecodeError, match="not a line"):
        parse_json(line)


def test_a_hash_that_is_not_hexadecimal_is_refused() -> None:
    (line,) = decided(FIRST).splitlines()
    (record,) = decode_message(*message_of(Topic.DECISIONS, FIRST))
    assert isinstance(record.body, Decision)
    segment_hash = record.body.plan.segments[0].segment_hash.hex()
    with pytest.raises(DecodeError, match="not a line"):
        parse_json(line.replace(segment_hash, "xyz"))
