"""Whatever another process leases and reserves, in whatever order: when it is gone, nothing of it is left."""

from hypothesis import given
from hypothesis import strategies as st

from nebula_protocol.ids import DomainId, Origin, SegmentHash
from pic_worker.catalogue import IncomingSegment, ReservationId, Reserved
from pic_worker.core.host_catalogue import HostCatalogue
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.store_entry import SegmentKey, StoredSegment
from pic_worker.host_leases import HostLeases

PAGE_TOKENS = 4
NUM_PAGES = 6
NAMES = st.integers(0, 4)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("lease", "reserve", "drop", "save")), st.lists(NAMES, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(("release", "confirm", "cancel")), st.lists(st.integers(0, 20), max_size=2)),
    ),
    max_size=40,
)


def key_of(name: int) -> SegmentKey:
    return SegmentKey(DomainId("d"), SegmentHash(bytes([name]) * 16))


def segment_of(name: int, origin: Origin) -> StoredSegment:
    return StoredSegment(key_of(name), bytes([name]), 3 + name * 2, origin)


class World:
    def __init__(self) -> None:
        self.catalogue = HostCatalogue(
            capacity_tokens=NUM_PAGES * PAGE_TOKENS, page_tokens=PAGE_TOKENS, block_size_tokens=4, prefix_ratio=0.0
        )
        self.leases = HostLeases(self.catalogue)
        self.lease_ids: list[LeaseId] = []
        self.reserved: dict[ReservationId, Reserved] = {}

    def move(self, kind: str, arguments: list[int]) -> None:
        match kind:
            case "lease":
                lease = self.leases.lease([key_of(name) for name in arguments])
                self.lease_ids += [lease.lease_id] if lease.lease_id is not None else []
            case "reserve":
                incoming = [IncomingSegment(segment_of(name, Origin.ALONE), 7) for name in arguments]
                for room in self.leases.reserve(incoming):
                    if isinstance(room, Reserved):
                        self.reserved[room.reservation_id] = room
            case "drop":
                self.leases.drop([key_of(name) for name in arguments])
            case "save":
                self.save(arguments)
            case "release":
                for number in arguments:
                    if number < len(self.lease_ids):
                        self.leases.release(self.lease_ids[number])
            case _:
                self.end_reservations(kind, arguments)

    def save(self, names: list[int]) -> None:
        """The engine's own, in context."""
        for name in names:
            if (room := self.catalogue.reserve_segment(segment_of(name, Origin.IN_CONTEXT), 0)) is not None:
                self.catalogue.confirm([room.save_id])

    def end_reservations(self, kind: str, numbers: list[int]) -> None:
        for number in numbers:
            ids = list(self.reserved)
            if number >= len(ids):
                continue
            del self.reserved[ids[number]]
            if kind == "confirm":
                self.lease_ids.append(self.leases.confirm(ids[number]))
            else:
                self.leases.cancel([ids[number]])


@given(MOVES)
def test_pages_promised_to_one_are_nobody_elses_and_all_comes_back(moves: list[tuple[str, list[int]]]) -> None:
    world = World()
    for kind, arguments in moves:
        world.move(kind, arguments)
        promised = [page for room in world.reserved.values() for page in room.pages]
        assert len(promised) == len(set(promised))
        free_tokens = world.catalogue.num_free_pages * PAGE_TOKENS
        assert free_tokens + world.catalogue.used_tokens == NUM_PAGES * PAGE_TOKENS
    world.leases.end_all()
    assert (world.leases.num_leases, world.leases.num_reservations) == (0, 0)
    assert (world.catalogue.pinned_tokens, world.catalogue.num_reserved) == (0, 0)


@given(MOVES)
def test_what_is_leased_stays_where_it_is(moves: list[tuple[str, list[int]]]) -> None:
    world = World()
    world.save([1])
    held = world.leases.lease([key_of(1)])
    for kind, arguments in moves:
        if kind != "release":
            world.move(kind, arguments)
    again = world.leases.lease([key_of(1)])
    assert again.segments == held.segments
