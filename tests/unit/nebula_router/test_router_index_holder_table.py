"""Rows of the index: allocation, names of content, the bound."""

import numpy as np

from nebula_router.core.holder_table import HolderTable, Kind
from nebula_router.core.key_map import ABSENT

BIT = np.uint64(1)


def table_of(max_rows: int) -> HolderTable:
    table = HolderTable(max_rows)
    for kind in (Kind.BLOCK, Kind.SEGMENT):
        table.on_release(kind, lambda rows: None)
    return table


def test_rows_keep_their_bits_while_the_table_grows() -> None:
    table = table_of(100_000)
    first = table.allocate(Kind.BLOCK, 10)
    table.device[0][first] |= BIT
    more = table.allocate(Kind.BLOCK, 40_000)
    assert not np.isin(first, more).any()
    assert table.device[0][first].tolist() == [1] * 10
    assert not table.device[0][more].any()
    assert len(table) == 40_010


def test_more_holders_keep_the_bits_of_the_others() -> None:
    table = table_of(100)
    rows = table.allocate(Kind.BLOCK, 2)
    table.host[0][rows] |= BIT
    table.add_words(3)
    assert table.host[:, rows].tolist() == [[1, 1], [0, 0], [0, 0]]


def test_a_handle_names_content_and_not_a_row() -> None:
    table = table_of(100)
    rows = table.allocate(Kind.BLOCK, 2)
    handles = table.handles_of(rows)
    assert table.rows_of(handles).tolist() == rows.tolist()
    table.release(rows[:1])
    assert table.rows_of(handles).tolist() == [ABSENT, rows[1]]
    table.allocate(Kind.BLOCK, 1)
    assert table.rows_of(handles).tolist() == [ABSENT, rows[1]]
    assert table.rows_of(np.array([ABSENT])).tolist() == [ABSENT]


def test_only_rows_without_any_bit_are_empty() -> None:
    table = table_of(100)
    rows = table.allocate(Kind.BLOCK, 5)
    for column, row in zip((table.device, table.host, table.claimed, table.leaving), rows, strict=False):
        column[0][row] |= BIT
    assert table.empty_among(np.concatenate([rows, rows])).tolist() == [rows[4]]


def test_owners_of_keys_hear_of_their_rows_only() -> None:
    table, heard = HolderTable(100), []
    table.on_release(Kind.BLOCK, lambda rows: heard.append(("block", rows.tolist())))
    table.on_release(Kind.SEGMENT, lambda rows: heard.append(("segment", rows.tolist())))
    blocks, segments = table.allocate(Kind.BLOCK, 2), table.allocate(Kind.SEGMENT, 1)
    table.release(np.concatenate([segments, blocks]))
    assert heard == [("block", blocks.tolist()), ("segment", segments.tolist())]
    assert (len(table), table.count(Kind.BLOCK), table.count(Kind.SEGMENT)) == (0, 0, 0)


def test_the_longest_unused_rows_make_room() -> None:
    table = table_of(32)
    old, young = table.allocate(Kind.BLOCK, 16), table.allocate(Kind.BLOCK, 16)
    table.touch(young)
    table.touch(old[8:])
    assert not table.has_room(1)
    # One sixteenth of 32 rows goes at once: two of the eight that were never touched.
    table.allocate(Kind.SEGMENT, 1)
    assert (table.num_evicted, len(table)) == (2, 31)
    assert table.rows_of_kind(Kind.SEGMENT)[0] in old[:8]


def test_the_table_is_told_apart_before_and_after_every_change() -> None:
    table = table_of(100)
    versions = {table.version}
    rows = table.allocate(Kind.BLOCK, 1)
    versions.add(table.version)
    table.release(rows)
    versions.add(table.version)
    assert len(versions) == 3
