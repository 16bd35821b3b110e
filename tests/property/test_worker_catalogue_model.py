"""The host catalogue against a naive model of who owns which page."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nebula_protocol.events import HostBlocksRemoved, HostBlocksStored, SegmentRemoved, SegmentStored, StoreCleared
from nebula_protocol.ids import DomainId, EngineBlockHash, Origin, SegmentHash
from pic_worker.core.arena_ids import Page, SaveId
from pic_worker.core.host_catalogue import HostCatalogue
from pic_worker.core.host_entry import BlockName, HostBlock
from pic_worker.core.store_entry import SegmentKey, StoredSegment

PAGE_TOKENS, BLOCK_TOKENS, NUM_PAGES = 2, 4, 12
DOMAIN = DomainId("d")

numbers = st.integers(0, 9)


def block(number: int) -> BlockName:
    return BlockName(EngineBlockHash(number), bytes([number]))


def key(number: int) -> SegmentKey:
    return SegmentKey(DOMAIN, SegmentHash(bytes([number]) * 16))


@dataclass
class Announced:
    """What a reader of the events believes."""

    blocks: set[int] = field(default_factory=set)
    segments: set[bytes] = field(default_factory=set)


class CatalogueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.catalogue = HostCatalogue(
            capacity_tokens=NUM_PAGES * PAGE_TOKENS,
            page_tokens=PAGE_TOKENS,
            block_size_tokens=BLOCK_TOKENS,
            prefix_ratio=0.5,
        )
        self.owned: dict[int | SegmentKey, tuple[Page, ...]] = {}
        """Pages of every entry that was given some, as far as is known."""
        self.reserved: dict[SaveId, int | SegmentKey] = {}
        self.ready: set[int | SegmentKey] = set()
        self.leaving: set[SegmentKey] = set()
        self.pins: list[int | SegmentKey] = []
        self.announced = Announced()

    # ---- what a connector does ----

    @rule(number=numbers, num_tokens=st.integers(1, 9), is_alone=st.booleans())
    def reserve_segment(self, number: int, num_tokens: int, is_alone: bool) -> None:
        # The same content has the same length.
        num_tokens = number + 1
        origin = Origin.ALONE if is_alone else Origin.IN_CONTEXT
        made = self.catalogue.reserve_segment(StoredSegment(key(number), bytes([number]), num_tokens, origin), 3)
        if made is not None:
            assert key(number) not in self.reserved.values()
            assert len(made.pages) == -(-num_tokens // PAGE_TOKENS)
            self.reserved[made.save_id] = key(number)
            self.ready.discard(key(number))
            self.leaving.discard(key(number))
            self.take(key(number), made.pages)

    @rule(chosen=st.lists(numbers, max_size=4, unique=True))
    def reserve_blocks(self, chosen: list[int]) -> None:
        for made in self.catalogue.reserve_blocks([(block(number), False) for number in chosen]):
            number = int(made.name.block_hash)
            assert number not in self.reserved.values()
            assert len(made.pages) == BLOCK_TOKENS // PAGE_TOKENS
            self.reserved[made.save_id] = number
            self.take(number, made.pages)

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        if self.reserved:
            save_id = data.draw(st.sampled_from(sorted(self.reserved)))
            self.catalogue.confirm([save_id, SaveId(10**6)])
            self.ready.add(self.reserved.pop(save_id))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        cancelable = [save_id for save_id, entry in self.reserved.items() if entry not in self.pins]
        if cancelable:
            save_id = data.draw(st.sampled_from(cancelable))
            self.catalogue.cancel([save_id])
            del self.owned[self.reserved.pop(save_id)]

    @rule(number=numbers)
    def pin_segment(self, number: int) -> None:
        if self.catalogue.find_segment(key(number)) is not None:
            self.catalogue.pin_segment(key(number))
            self.pins.append(key(number))

    @rule(number=numbers)
    def pin_block(self, number: int) -> None:
        found = self.catalogue.find_blocks([block(number)])
        if found:
            self.catalogue.pin_blocks(found)
            self.pins.append(number)

    @rule(number=numbers)
    def drop(self, number: int) -> None:
        self.catalogue.drop_segment(key(number))
        if key(number) in self.ready:
            self.leaving.add(key(number))

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        if self.pins:
            self.release(self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1))))

    @rule(ratio=st.floats(0, 1))
    def set_split(self, ratio: float) -> None:
        self.catalogue.set_split(ratio)

    @rule()
    def clear(self) -> None:
        self.catalogue.clear()

    def teardown(self) -> None:
        """When all is over and cleared, every page is free."""
        for entry in self.pins:
            self.release(entry)
        self.catalogue.confirm(self.reserved)
        self.catalogue.clear()
        assert self.catalogue.num_free_pages == NUM_PAGES
        assert (self.catalogue.used_tokens, self.catalogue.pinned_tokens, self.catalogue.num_reserved) == (0, 0, 0)
        self.read_events()
        assert self.announced == Announced()

    # ---- what must hold ----

    @invariant()
    def events_tell_exactly_what_is_found(self) -> None:
        self.read_events()
        found_segments = {key(n) for n in range(10) if self.catalogue.find_segment(key(n)) is not None}
        found_blocks = {n for n in range(10) if self.catalogue.find_blocks([block(n)])}
        replaced = {entry.segment_hash for entry in self.reserved.values() if isinstance(entry, SegmentKey)}
        assert {each.segment_hash for each in found_segments} == self.announced.segments - replaced
        assert found_blocks == self.announced.blocks
        assert found_segments | found_blocks <= self.ready

    @invariant()
    def every_page_has_one_owner(self) -> None:
        gone = [entry for entry in self.owned if not self.is_here(entry)]
        for entry in gone:
            del self.owned[entry]
            self.ready.discard(entry)
        pages = [page for owned in self.owned.values() for page in owned]
        assert len(pages) == len(set(pages)) == NUM_PAGES - self.catalogue.num_free_pages
        assert self.catalogue.used_tokens == len(pages) * PAGE_TOKENS <= NUM_PAGES * PAGE_TOKENS

    @invariant()
    def what_was_dropped_is_here_only_while_it_is_used(self) -> None:
        self.leaving = {entry for entry in self.leaving if self.is_here(entry)}
        for entry in self.leaving:
            assert entry in self.pins

    @invariant()
    def what_is_pinned_stays(self) -> None:
        for entry in self.pins:
            assert self.is_here(entry)

    # ---- the model ----

    def take(self, entry: int | SegmentKey, pages: tuple[Page, ...]) -> None:
        self.every_page_has_one_owner_but(entry, pages)
        self.owned[entry] = pages

    def every_page_has_one_owner_but(self, entry: int | SegmentKey, pages: tuple[Page, ...]) -> None:
        for other, owned in self.owned.items():
            if other != entry and set(owned) & set(pages):
                assert not self.is_here(other)

    def is_here(self, entry: int | SegmentKey) -> bool:
        if entry in self.reserved.values():
            return True
        if isinstance(entry, SegmentKey):
            return self.catalogue.has_segment(entry)
        return bool(self.catalogue.find_blocks([block(entry)]))

    def release(self, entry: int | SegmentKey) -> None:
        if isinstance(entry, SegmentKey):
            self.catalogue.unpin_segment(entry)
        else:
            self.catalogue.unpin_blocks([HostBlock(block(entry), self.owned[entry], False)])

    def read_events(self) -> None:
        announced = self.announced
        for event in self.catalogue.take_events():
            match event:
                case SegmentStored():
                    announced.segments.add(event.segment_hash)
                case SegmentRemoved():
                    # A removal of what nobody was told of fails here.
                    announced.segments.remove(event.segment_hash)
                case HostBlocksStored():
                    assert not announced.blocks & set(event.block_hashes)
                    announced.blocks.update(event.block_hashes)
                case HostBlocksRemoved():
                    assert set(event.block_hashes) <= announced.blocks
                    announced.blocks.difference_update(event.block_hashes)
                case StoreCleared():
                    self.announced = announced = Announced()


CatalogueMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestHostCatalogue = CatalogueMachine.TestCase
