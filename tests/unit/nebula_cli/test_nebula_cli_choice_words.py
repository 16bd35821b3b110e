"""Why a worker was chosen, in words."""

from msgspec.structs import replace
from support.told_decisions import candidate, decision, segment

from nebula_cli.choice_words import duration, explain_choice
from nebula_cli.worker_name import WorkerNames
from nebula_protocol.events import Decision
from nebula_protocol.ids import WorkerId
from nebula_protocol.plan import Source


def why(told: Decision) -> list[str]:
    names = WorkerNames()
    for number in range(1, 10):
        names.learn(WorkerId(number), "prefill")
    return [sentence.replace("prefill/00000", "w") for sentence in explain_choice(told, names)]


def test_times_are_short_and_have_the_digits_that_matter() -> None:
    said = [duration(seconds) for seconds in (0.0, 0.000424, 0.0096, 0.00996, 0.0354, 0.9999, 1.2449)]
    assert said == ["0", "0.42 ms", "9.6 ms", "10 ms", "35 ms", "1.00 s", "1.24 s"]


def test_a_busy_worker_that_has_the_tokens_beats_an_idle_one_that_has_not() -> None:
    told = decision(
        candidate(3, free_in_ms=120, compute_ms=30, prefix=57, segments=1_400), candidate(5, compute_ms=430)
    )
    assert why(told) == [
        "w3 is free in 120 ms, has 1,457 of 1,484 tokens, computes for 30 ms and is done in 150 ms",
        "no other worker would be done sooner, counting what the request costs others that wait",
        # 430 - 30 ms of computing, and 430 - 150 until it is done.
        "w5 is free at once and has 0 of 1,484 tokens: it would compute 400 ms longer and be done 280 ms later",
    ]


def test_the_next_best_the_freest_and_the_one_with_most_are_told_and_no_one_twice() -> None:
    others = (
        candidate(2, free_in_ms=10, compute_ms=100, segments=500),
        candidate(3, free_in_ms=20, compute_ms=100, segments=500),
        candidate(4, compute_ms=150),
        candidate(5, free_in_ms=900, compute_ms=10, segments=1_400),
    )
    sentences = why(decision(candidate(1, compute_ms=50, segments=1_000), *others))
    assert [sentence.split()[0] for sentence in sentences[2:]] == ["w2", "w4", "w5"]
    alike = why(decision(candidate(1, compute_ms=50, segments=1_000), candidate(2, compute_ms=100, segments=900)))
    assert len(alike) == 3


def test_copies_are_told_apart_from_what_lies_there_and_so_is_the_wait_for_them() -> None:
    told = decision(
        candidate(1, arrive_in_ms=8, compute_ms=20, segments=1_000, copied=400),
        candidate(2, arrive_in_ms=38, compute_ms=20, segments=1_000, copied=1_000),
    )
    chosen, _, other = why(told)
    assert chosen == (
        "w1 is free at once, has 600 of 1,484 tokens and gets 400 from others, computes for 20 ms "
        "and is done in 28 ms; the last segment arrives in 8.0 ms"
    )
    assert other == (
        "w2 is free at once and has 0 of 1,484 tokens and gets 1,000 from others: "
        "it would wait 30 ms longer for segments and be done 30 ms later"
    )


def test_an_engine_that_computes_while_its_segments_arrive_is_said_to_do_so() -> None:
    busy = candidate(1, free_in_ms=30, arrive_in_ms=10, compute_ms=20, segments=1_000, copied=400)
    # They are there before the engine is free.
    assert why(decision(busy))[0].endswith("is done in 50 ms; the last segment arrives in 10 ms")
    overlapping = replace(busy, estimate=replace(busy.estimate, free_in_s=0.0, completion_s=0.022))
    assert why(decision(overlapping))[0].endswith(
        "is done in 22 ms; the last segment arrives in 10 ms, layer by layer while it computes"
    )


def test_equally_good_workers_are_told_apart_by_their_work() -> None:
    # The next one's score is 1 ms better, which the router takes for none.
    told = decision(candidate(1, compute_ms=100), candidate(2, compute_ms=99))
    assert why(told)[1] == (
        "w2 is as good within the estimate's own error; "
        "of equally good workers the one that was given least work lately is taken"
    )


def test_a_later_worker_may_win_since_others_wait_less_for_it() -> None:
    told = decision(
        candidate(1, free_in_ms=30, compute_ms=40, cost_ms=0), candidate(2, compute_ms=60, cost_ms=35, segments=100)
    )
    sentences = why(told)
    assert sentences[1] == "w1 is not the first to be done, but what the request costs others there is so much less"
    assert sentences[2].endswith("it would compute 20 ms longer, be done 10 ms sooner and cost others 35 ms more")


def test_helpers_are_named_with_what_they_compute() -> None:
    segments = [
        segment(0, 300, Source.COMPUTE),
        segment(300, 700, Source.COMPUTE_AT, 4),
        segment(700, 900, Source.COMPUTE_AT, 5),
        segment(900, 1_000, Source.COMPUTE_AT, 4),
    ]
    told = decision(candidate(1, compute_ms=60), candidate(2, compute_ms=100), segments=segments)
    assert why(told)[1] == "meanwhile 700 of the tokens are computed for it by 2 helpers: w4, w5"
    told = decision(candidate(1, compute_ms=60), segments=segments[:2])
    assert why(told)[1] == "meanwhile 400 of the tokens are computed for it by one helper: w4"


def test_without_other_candidates_the_reason_is_told() -> None:
    only = candidate(1, compute_ms=60)
    assert why(decision(only, is_bound=True))[1] == "the client chose w1"
    assert why(decision(only))[1] == "no other worker of 7 could take the request"
    assert why(decision(only, num_workers=1))[1] == "no other worker could take the request"


def test_workers_that_do_not_differ_are_said_not_to() -> None:
    told = decision(candidate(1, compute_ms=60), candidate(2, compute_ms=60.3))
    assert why(told)[2] == "w2 is free at once and has 0 of 1,484 tokens: it would be done at the same time"


def test_a_decision_that_tells_no_scores_is_explained_by_its_times() -> None:
    told = decision(candidate(1, compute_ms=50, cost_ms=None), candidate(2, compute_ms=80, cost_ms=None))
    assert (
        why(told)[2]
        == "w2 is free at once and has 0 of 1,484 tokens: it would compute 30 ms longer and be done 30 ms later"
    )
