"""Laws of the split controller and of the list of ghosts, whatever is asked for and lost."""

from collections import OrderedDict
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.split_case import CHUNK, chat, controller, lookup, lost_chunks, lost_segment

from nebula_protocol.ids import RemovalReason
from nebula_router.core.evidence import LostEntry
from nebula_router.core.ghost import GhostList
from nebula_router.core.prompt_use import PromptUse

names = st.integers(0, 30)
reasons = st.sampled_from(RemovalReason)
uses = st.one_of(
    st.builds(lambda chunks, hit: chat(*chunks, hit_chunks=min(hit, len(chunks))), st.lists(names), st.integers(0, 5)),
    st.builds(
        lambda segments, held, tokens: lookup(*segments, num_tokens=tokens, held=held),
        st.lists(names, min_size=1, unique=True),
        st.lists(names),
        st.integers(1, 4_000),
    ),
)
losses: st.SearchStrategy[LostEntry] = st.one_of(
    st.builds(lambda chunks, reason: lost_chunks(*chunks, reason=reason), st.lists(names, unique=True), reasons),
    st.builds(lambda number, reason: lost_segment(number, CHUNK, reason), names, reasons),
)


@settings(max_examples=60)
@given(st.lists(st.one_of(uses, losses), max_size=60), st.floats(0, 1), st.integers(1, 8), st.integers(0, 5_000))
def test_the_share_is_a_share_and_moves_in_bounded_steps(
    happenings: list[PromptUse | LostEntry], start_ratio: float, window_requests: int, device_tokens: int
) -> None:
    split = controller(prefix_ratio=start_ratio, window_requests=window_requests, device_tokens=device_tokens)
    num_uses = 0
    for happening in happenings:
        before = split.prefix_ratio
        if isinstance(happening, PromptUse):
            num_uses += 1
            hits = split.record_use(happening)
            assert hits.prefix_tokens >= 0
            assert hits.segment_tokens >= 0
            assert hits.prefix_tokens + hits.segment_tokens < happening.num_tokens
        else:
            split.record_lost(happening)
        assert 0.0 <= split.prefix_ratio <= 1.0
        step = abs(split.prefix_ratio - before)
        assert step <= window_requests * 0.1 / 32 + 1e-9
        assert step == 0.0 or (isinstance(happening, PromptUse) and num_uses % window_requests == 0)


@settings(max_examples=60)
@given(st.lists(st.one_of(uses, losses), max_size=60))
def test_no_split_saves_more_than_all_time_or_less_than_none(happenings: list[PromptUse | LostEntry]) -> None:
    split = controller(window_requests=1_000)
    for happening in happenings:
        if isinstance(happening, PromptUse):
            split.record_use(happening)
        else:
            split.record_lost(happening)
    assert all(-1e-9 <= ratio <= 1.0 for ratio in split.saved_ratios())


@settings(max_examples=60)
@given(st.lists(uses, max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_what_is_learned_does_not_depend_on_where_the_split_stands(
    happenings: list[PromptUse], one_ratio: float, other_ratio: float
) -> None:
    one, other = (controller(prefix_ratio=ratio, window_requests=1) for ratio in (one_ratio, other_ratio))
    for use in happenings:
        one.record_use(use)
        other.record_use(use)
    assert one.saved_ratios() == other.saved_ratios()


class NaiveStack:
    """Names with sizes, the most recently used last."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[int, int] = OrderedDict()
        self.lost: set[int] = set()

    def use(self, name: int, num_tokens: int) -> None:
        self.sizes.pop(name, None)
        self.sizes[name] = num_tokens
        self.lost.discard(name)

    def depth(self, name: int) -> float:
        """From the middle of the entry to the top."""
        names = list(self.sizes)
        return sum(self.sizes[one] for one in names[names.index(name) + 1 :]) + self.sizes[name] / 2


WIDTH = 50
"""Of a group, by the bound."""

operations = st.lists(
    st.tuples(st.sampled_from(("use", "use", "use", "lose", "forget")), st.integers(0, 40)), max_size=400
)


@settings(max_examples=80)
@given(operations)
def test_depths_are_those_of_a_naive_stack_up_to_a_groups_width(steps: list[tuple[str, int]]) -> None:
    entries: GhostList[int] = GhostList(bound_tokens=WIDTH * 128.0, max_entries=1_000)
    naive = NaiveStack()
    for operation, name in steps:
        size = 1 + name % 20
        if operation == "use":
            entries.use({name: float(size)})
            naive.use(name, size)
        elif operation == "lose":
            entries.lose([name])
            naive.lost |= {name} & naive.sizes.keys()
        else:
            entries.forget([name], float(size))
            naive.sizes.pop(name, None)
            naive.lost.discard(name)
    assert len(entries) == len(naive.sizes)
    assert entries.num_tokens == sum(naive.sizes.values())
    for name, mark in zip(naive.sizes, entries.marks_of(naive.sizes), strict=True):
        # Depths are measured whenever a width was used; a group is filled by at most 20 more.
        assert abs(entries.depth_of(mark) - naive.depth(name)) <= 2 * (WIDTH + 20)
        assert entries.is_ghost(mark) == (name in naive.lost)


def test_a_symmetric_load_leaves_the_split_where_it_is() -> None:
    """Chats of 8 chunks and lookups of as many tokens, equally popular, equally long, at equal prices."""
    random = Random(7)
    weights = [1 / (rank + 1) for rank in range(60)]
    split = controller(prefix_ratio=0.5, window_requests=32)
    ratios = []
    for number in range(3_000):
        if number >= 500:
            ratios.append(split.prefix_ratio)
        topic = random.choices(range(60), weights)[0]
        is_chat = random.random() < 0.5
        split.record_use(chat(*range(topic * 8, topic * 8 + 8)) if is_chat else lookup(topic, num_tokens=8 * CHUNK))
    # Twelve of either fit the store of 12,800 tokens. Chance favours one or the other for a while.
    assert min(ratios) > 0.35
    assert max(ratios) < 0.65
    assert abs(sum(ratios) / len(ratios) - 0.5) < 0.1
