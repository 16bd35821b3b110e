"""Entries in order of last use, and which of them are ghosts."""

from math import inf

import pytest

from nebula_router.core.ghost import UNKNOWN, GhostList


def ghosts(*, bound_tokens: float = 12_800.0, max_entries: int = 1_000) -> GhostList[str]:
    """Groups are 12,800 / 128 = 100 tokens wide."""
    return GhostList(bound_tokens=bound_tokens, max_entries=max_entries)


def depth(entries: GhostList[str], key: str) -> float:
    return entries.depth_of(entries.marks_of([key])[0])


def is_ghost(entries: GhostList[str], key: str) -> bool:
    return entries.is_ghost(entries.marks_of([key])[0])


def test_an_entry_that_was_never_used_is_unknown_and_no_room_keeps_it() -> None:
    entries = ghosts()
    assert entries.marks_of(["a"]) == [UNKNOWN]
    assert depth(entries, "a") == inf
    assert not is_ghost(entries, "a")


def test_an_entry_lies_below_all_that_was_used_since() -> None:
    entries = ghosts()
    for key in "abc":
        entries.use({key: 100.0})
    # Each fills a group of its own, of which half counts: c 50, b 100 + 50, a 200 + 50.
    assert [depth(entries, key) for key in "abc"] == [250.0, 150.0, 50.0]


def test_an_entry_that_is_used_again_is_on_top_and_counts_once() -> None:
    entries = ghosts()
    for key in "abcbcbc":
        entries.use({key: 100.0})
    # Above a lie b and c, however often they were used: 200, and half of a's own 100.
    assert depth(entries, "a") == 250.0
    assert depth(entries, "c") == 50.0
    assert entries.num_tokens == 300.0
    assert len(entries) == 3


def test_entries_of_one_use_lie_at_one_depth() -> None:
    entries = ghosts()
    entries.use({"a": 10.0, "b": 20.0})
    entries.use({"c": 100.0})
    # 10 + 20 + 100 fill the group, of which half counts.
    assert depth(entries, "a") == depth(entries, "b") == depth(entries, "c") == 65.0


def test_an_entry_is_a_ghost_from_its_loss_to_its_next_use() -> None:
    entries = ghosts()
    entries.use({"a": 100.0})
    entries.use({"b": 100.0})
    assert not is_ghost(entries, "a")
    # 100 above, and half of its own 100.
    assert entries.lose(["a"]) == [150.0]
    assert is_ghost(entries, "a")
    assert not is_ghost(entries, "b")
    entries.use({"a": 100.0})
    assert not is_ghost(entries, "a")


def test_a_ghost_keeps_its_place() -> None:
    entries = ghosts()
    for key in "ab":
        entries.use({key: 100.0})
    before = depth(entries, "a")
    entries.lose(["a"])
    assert depth(entries, "a") == before


def test_the_loss_of_what_is_unknown_makes_no_ghost() -> None:
    entries = ghosts()
    assert entries.lose(["a"]) == []
    assert not is_ghost(entries, "a")


def test_what_is_forgotten_is_unknown_and_weighs_nothing() -> None:
    entries = ghosts()
    for key in "abc":
        entries.use({key: 100.0})
    entries.forget(["b", "never used"], 100.0)
    assert depth(entries, "b") == inf
    assert entries.num_tokens == 200.0
    entries.use({"d": 100.0})
    # c and d above, and half of its own: 250.
    assert depth(entries, "a") == 250.0


def test_what_lies_deeper_than_the_bound_is_dropped() -> None:
    entries = ghosts()
    entries.use({"first": 100.0})
    for number in range(128):
        entries.use({f"{number}": 100.0})
    # 12,800 tokens lie above it.
    assert depth(entries, "first") == inf
    assert depth(entries, "0") < inf
    assert entries.num_tokens == 12_800.0


def test_a_ghost_that_was_dropped_and_is_used_again_is_new() -> None:
    entries = ghosts()
    entries.use({"first": 100.0})
    for number in range(200):
        entries.use({f"{number}": 100.0})
    entries.use({"first": 100.0})
    assert depth(entries, "first") == 50.0


def test_the_number_of_entries_is_bounded_too() -> None:
    entries = ghosts(max_entries=10)
    for number in range(100):
        entries.use({f"{number}": 100.0})
    assert len(entries) <= 11  # Ten, and those of the newest group.
    assert depth(entries, "89") == inf
    assert depth(entries, "99") == 50.0


def test_memory_does_not_grow_with_the_number_of_uses() -> None:
    entries = ghosts(bound_tokens=1_280.0)
    for number in range(500):
        entries.use({f"{number}-{part}": 10.0 for part in range(10)})
    # 1,280 tokens of ten each, and a use that fills a group; stale names are at most as many, or 1,024.
    assert len(entries) <= 138
    assert len(entries._marks) <= 1_024 + 138


def test_rarely_used_entries_keep_their_order_while_others_are_used_over_and_over() -> None:
    entries = ghosts()
    for key in ("old", "young"):
        entries.use({key: 60.0})
        entries.use({"between": 60.0})
    for _ in range(600):
        entries.use({"hot": 60.0, "warm": 60.0})
    # hot and warm have opened 600 groups; empty ones are joined again and again.
    assert len(entries._tokens) <= 256
    # Above `old` lie the other four, and half of its own 60. `young` shares a group with `between`: hot and warm lie
    # above, and half of 120.
    assert (depth(entries, "old"), depth(entries, "young")) == (270.0, 180.0)


@pytest.mark.parametrize("num_tokens", [0.0, 1.0, 99.0])
def test_a_smaller_bound_holds_from_the_next_use_on(num_tokens: float) -> None:
    entries = ghosts()
    for number in range(50):
        entries.use({f"{number}": 100.0})
    entries.set_bound(1_280.0)
    entries.use({"last": 100.0 + num_tokens})
    assert depth(entries, "0") == inf
    assert depth(entries, "49") < inf
