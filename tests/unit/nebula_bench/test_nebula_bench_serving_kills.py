"""What is read from a deployment whose workers die."""

from dataclasses import replace

import pytest

from nebula_bench.serving.answer_reader import StreamedAnswer
from nebula_bench.serving.decision_feed import DecisionFeed, SeenDecision
from nebula_bench.serving.handover_kill import HandoverKill, HandoverKills
from nebula_bench.serving.index_watch import IndexWatch
from nebula_bench.serving.kill_report import kill_markdown, kill_measurements
from nebula_bench.serving.process_metrics import ProcessMetrics
from nebula_bench.serving.replay_kill import ReplayKill
from nebula_protocol.ids import WorkerId

DEAD, OTHER = WorkerId(1), WorkerId(2)


async def no_routers() -> list[ProcessMetrics]:
    return []


def watch(*samples: tuple[float, int]) -> IndexWatch:
    watch = IndexWatch(no_routers)
    watch.samples += samples
    return watch


REPLAY_KILL = ReplayKill(
    num_requests=500,
    errors={},
    process="PrefillWorker-3",
    num_served_before=20,
    num_retries=1,
    named_until_s=0.1,
    num_decisions_after=300,
    fewest_workers=6,
    num_workers=7,
    known_again_s=4.0,
    used_again_s=4.5,
    num_served_after=30,
    num_helped_after=12,
)
HANDOVER_KILL = HandoverKill(
    process="PrefillWorker-1",
    is_complete=True,
    is_same_text=True,
    recovery_s=2.0,
    error=None,
)


def values_of(replay: ReplayKill, *kills: HandoverKill) -> dict[str, tuple[float, bool]]:
    measurements = kill_measurements(replay, HandoverKills(kills, num_retries=len(kills), num_tokens=8))
    return {one.id: (one.value, one.ok) for one in measurements}


def test_the_last_decision_that_counts_on_a_worker_is_found_with_those_behind_it() -> None:
    feed = DecisionFeed(
        [
            SeenDecision(1.0, frozenset({DEAD, OTHER})),
            SeenDecision(2.0, frozenset({OTHER})),
            SeenDecision(3.0, frozenset({DEAD})),
            SeenDecision(4.0, frozenset({OTHER})),
        ]
    )
    assert feed.last_naming(DEAD) == 3.0
    assert feed.num_without(DEAD, 3.0) == 1
    assert feed.last_naming(WorkerId(9)) is None


def test_the_index_is_complete_again_with_the_first_full_sample_behind_a_short_one() -> None:
    samples = watch((0.0, 7), (1.0, 7), (2.0, 6), (3.0, 6), (4.0, 7), (5.0, 7))
    assert samples.fewest_after(1.0) == 6
    assert samples.complete_again_s(1.0, 7) == 4.0


def test_an_index_that_never_lost_a_worker_is_not_complete_again() -> None:
    assert watch((0.0, 7), (1.0, 7)).complete_again_s(0.0, 7) is None
    assert watch((0.0, 6), (1.0, 6)).complete_again_s(0.0, 7) is None
    assert watch().fewest_after(0.0) is None


def test_kills_without_harm_meet_every_bar() -> None:
    values = values_of(REPLAY_KILL, HANDOVER_KILL, replace(HANDOVER_KILL, recovery_s=3.0))
    assert all(ok for _, ok in values.values())
    assert values["kill_errors"] == (0, True)
    assert values["kill_retries"] == (3, True)  # 1 in the replay, 2 before the pull
    assert values["restarted_worker_used"] == (1, True)
    assert values["kill_slowest_recovery_s"] == (3.0, True)


@pytest.mark.parametrize(
    "kill",
    [
        replace(HANDOVER_KILL, error="cut off"),
        replace(HANDOVER_KILL, is_complete=False),
    ],
)
def test_an_answer_that_broke_off_is_an_error(kill: HandoverKill) -> None:
    assert values_of(REPLAY_KILL, kill)["kill_errors"] == (1, False)


def test_failed_requests_of_the_replay_are_errors_and_an_unused_worker_misses_its_bar() -> None:
    unused = replace(REPLAY_KILL, errors={"500: lost": 2}, num_served_after=0, num_helped_after=0, used_again_s=None)
    values = values_of(unused, HANDOVER_KILL)
    assert values["kill_errors"] == (2, False)
    assert values["restarted_worker_used"] == (0, False)
    assert "restarted_worker_used_again_s" not in values


def test_a_worker_that_only_helps_is_used() -> None:
    values = values_of(replace(REPLAY_KILL, num_served_after=0), HANDOVER_KILL)
    assert values["restarted_worker_used"] == (1, True)
    assert values["restarted_worker_requests"] == (0, True)


def test_an_answer_that_goes_on_with_other_words_is_told_apart() -> None:
    values = values_of(REPLAY_KILL, replace(HANDOVER_KILL, is_same_text=False), HANDOVER_KILL)
    assert values["kill_errors"] == (0, True)
    assert values["kill_same_answers"] == (1, False)


def test_the_tables_name_the_processes_that_died() -> None:
    text = kill_markdown(REPLAY_KILL, HandoverKills((HANDOVER_KILL,), num_retries=1, num_tokens=8))
    assert "`PrefillWorker-3`" in text
    assert "| `PrefillWorker-1` | yes | yes | 2.0 | none |" in text


def test_a_streamed_answer_collects_text_length_and_every_worker_that_prefilled_it() -> None:
    answer = StreamedAnswer()
    for data in (
        '{"choices":[{"text":"a"}],"nvext":{"engine_data":{"worker_id":{"prefill_worker_id":18446744073709551615}}}}',
        '{"choices":[{"text":"b","finish_reason":"length"}],"usage":null}',
        '{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}',
        "[DONE]",
    ):
        answer.take(data)
    assert (answer.text, answer.finish_reason, answer.num_tokens) == ("ab", "length", 2)
    assert answer.prefill_worker_ids == [2**64 - 1]
    assert answer.error is None


def test_an_error_event_is_the_answers_error() -> None:
    answer = StreamedAnswer()
    answer.take('{"error":{"message":"Internal server error","code":500}}')
    assert answer.error == "Internal server error"
