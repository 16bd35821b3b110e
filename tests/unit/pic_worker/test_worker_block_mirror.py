"""What is known of the device tier's blocks from outside."""

from pic_worker.core.block_mirror import BlockContent, BlockMirror, LeavingBlock

A, B = BlockContent(b"a", False), BlockContent(b"b", True)


def test_an_overwritten_block_leaves_with_what_it_held() -> None:
    mirror = BlockMirror()
    mirror.record(3, A)
    assert mirror.overwrite([2, 3]) == [LeavingBlock(3, A)]
    assert mirror.overwrite([3]) == []


def test_a_block_with_another_copy_does_not_leave() -> None:
    mirror = BlockMirror()
    mirror.record(1, A)
    mirror.record(2, A)
    assert mirror.overwrite([1]) == []
    assert mirror.overwrite([2]) == [LeavingBlock(2, A)]


def test_copies_that_go_together_leave_once() -> None:
    mirror = BlockMirror()
    mirror.record(1, A)
    mirror.record(2, A)
    assert [leaving.content for leaving in mirror.overwrite([1, 2])] == [A]


def test_new_content_takes_the_place_of_the_old() -> None:
    mirror = BlockMirror()
    mirror.record(1, A)
    mirror.record(1, B)
    assert not mirror.holds(1, b"a")
    assert mirror.holds(1, b"b")
    assert mirror.overwrite([1]) == [LeavingBlock(1, B)]
    assert len(mirror) == 0


def test_what_was_injected_is_known_only_of_blocks_that_are_known() -> None:
    mirror = BlockMirror()
    mirror.record(1, B)
    assert mirror.is_injected(1, b"b") is True
    assert mirror.is_injected(1, b"a") is None
    mirror.clear()
    assert mirror.is_injected(1, b"b") is None
