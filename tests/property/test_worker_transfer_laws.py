"""Laws of what a transfer is planned from: page runs, and leases against a naive model."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pic_worker.core.arena_ids import Page
from pic_worker.core.lease_table import LeaseId, LeaseTable
from pic_worker.core.page_runs import copy_runs, page_runs

LEASE_S = 10.0

numbers = st.lists(st.integers(0, 12).map(Page), max_size=12)
pairs = st.lists(st.tuples(st.integers(0, 12).map(Page), st.integers(0, 12).map(Page)), max_size=12)


@given(numbers)
def test_runs_are_the_pages_in_their_order_and_never_adjoin(pages: list[Page]) -> None:
    runs = page_runs(pages)
    assert [run.first + offset for run in runs for offset in range(run.num_pages)] == pages
    assert all(left.first + left.num_pages != right.first for left, right in itertools.pairwise(runs))


@given(pairs)
def test_copies_take_each_page_to_its_place_in_the_fewest_pieces(moves: list[tuple[Page, Page]]) -> None:
    runs = copy_runs([source for source, _ in moves], [home for _, home in moves])
    copied = [(run.source_first + at, run.home_first + at) for run in runs for at in range(run.num_pages)]
    assert copied == moves
    breaks = sum(1 for (a, b), (c, d) in itertools.pairwise(moves) if (c, d) != (a + 1, b + 1))
    assert len(runs) == (breaks + 1 if moves else 0)


class Leases(RuleBasedStateMachine):
    """Ends of leases by number; time only goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(LEASE_S)
        self.ends_at_s: dict[int, float] = {}
        self.now_s = 0.0
        self.next_id = 0

    @rule()
    def grant(self) -> None:
        self.table.grant(LeaseId(self.next_id), self.now_s)
        self.ends_at_s[self.next_id] = self.now_s + LEASE_S
        self.next_id += 1

    @rule(lease=st.integers(0, 8))
    def renew(self, lease: int) -> None:
        renewed = self.table.renew(LeaseId(lease), self.now_s)
        assert renewed == (self.ends_at_s.get(lease, 0.0) > self.now_s)
        if renewed:
            self.ends_at_s[lease] = self.now_s + LEASE_S

    @rule(lease=st.integers(0, 8))
    def end(self, lease: int) -> None:
        assert self.table.end(LeaseId(lease)) == (self.ends_at_s.pop(lease, None) is not None)

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    @rule()
    def expire(self) -> None:
        over = {lease for lease, end_s in self.ends_at_s.items() if end_s <= self.now_s}
        assert set(self.table.take_ended(self.now_s)) == over
        for lease in over:
            del self.ends_at_s[lease]

    @invariant()
    def agrees(self) -> None:
        assert len(self.table) == len(self.ends_at_s)
        assert self.table.next_end_s() == min(self.ends_at_s.values(), default=None)
        for lease, end_s in self.ends_at_s.items():
            assert self.table.holds(LeaseId(lease), self.now_s) == (end_s > self.now_s)


TestLeases = Leases.TestCase
