"""The decode worker with the least KV to read."""

from nebula_bench.cluster.decode_choice import DecodeChoice
from nebula_protocol.ids import RequestId, WorkerId

ONE, TWO = WorkerId(1), WorkerId(2)
BOTH = frozenset({ONE, TWO})


def choose(
    choice: DecodeChoice, name: str, num_tokens: int, *, live: frozenset[WorkerId] = BOTH, now_s: float = 0.0
) -> WorkerId | None:
    return choice.choose(RequestId(name), live, num_tokens, now_s)


def test_nobody_alive_is_nobody() -> None:
    assert choose(DecodeChoice(), "a", 10, live=frozenset()) is None


def test_of_equal_workers_the_lowest_id_is_taken() -> None:
    assert choose(DecodeChoice(), "a", 10) == ONE


def test_tokens_in_flight_are_the_load() -> None:
    choice = DecodeChoice()
    # 100 on one; 30 + 30 + 30 on two are still less, with another 30 they are more.
    names = [choose(choice, name, tokens) for name, tokens in [("a", 100), ("b", 30), ("c", 30), ("d", 30), ("e", 30)]]
    assert names == [ONE, TWO, TWO, TWO, TWO]
    assert choose(choice, "f", 1) == ONE


def test_a_request_that_ended_weighs_nothing() -> None:
    choice = DecodeChoice()
    choose(choice, "a", 100)
    choose(choice, "b", 30)
    choice.record_end(RequestId("a"))
    assert choose(choice, "c", 1) == ONE


def test_ending_twice_or_unknown_requests_is_nothing() -> None:
    choice = DecodeChoice()
    choose(choice, "a", 100)
    choose(choice, "b", 50)
    for name in ("b", "b", "unknown"):
        choice.record_end(RequestId(name))
    assert choose(choice, "c", 1) == TWO


def test_only_live_workers_are_taken() -> None:
    choice = DecodeChoice()
    choose(choice, "a", 100, live=frozenset({TWO}))
    assert choose(choice, "b", 1, live=frozenset({TWO})) == TWO


def test_a_suspect_is_taken_only_if_there_is_no_other_until_15_s_are_over() -> None:
    choice = DecodeChoice()
    choice.suspect(ONE, 100.0)
    assert choose(choice, "a", 10, now_s=100.0) == TWO
    assert choose(choice, "b", 10, live=frozenset({ONE}), now_s=101.0) == ONE
    choice.record_end(RequestId("b"))
    assert choose(choice, "c", 10, now_s=114.9) == TWO
    assert choose(choice, "d", 10, now_s=115.0) == ONE


def test_suspicion_begins_anew_with_every_break() -> None:
    choice = DecodeChoice()
    choice.suspect(ONE, 0.0)
    choice.suspect(TWO, 1.0)
    choice.suspect(ONE, 10.0)
    # One is suspect until 25 s, two until 16 s.
    assert choose(choice, "a", 10, now_s=20.0) == TWO
    # Both are: then load decides.
    choice.suspect(TWO, 20.0)
    assert choose(choice, "b", 10, now_s=21.0) == ONE
