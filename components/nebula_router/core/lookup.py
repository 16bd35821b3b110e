"""One prompt against the index: the read path, vectorised over blocks and flat in the number of holders."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nebula_protocol.hashing import HashArray
from nebula_protocol.ids import DomainId, WorkerWithDpRank
from nebula_protocol.layout import PromptLayout
from nebula_router.core.coverage import IN_FLIGHT, STORED, UNCONFIRMED, Coverage
from nebula_router.core.holder_table import WORD_BITS
from nebula_router.core.index import Index
from nebula_router.core.key_map import ABSENT, IntArray
from nebula_router.core.prefix_blocks import BlockRun

_BYTES_PER_WORD = WORD_BITS // 8
_FIRST_BLOCKS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The holders that are asked about, and their bits."""

    holders: tuple[WorkerWithDpRank, ...]
    slots: IntArray
    version: int
    """Of the index's holders, for which the slots are right."""


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """A coverage, and what recording the decision that follows need not work out again."""

    coverage: Coverage
    layout: PromptLayout
    domain_id: DomainId
    run: BlockRun
    rows: IntArray
    """Of the prompt's leading blocks that somebody has, as of `table_version`."""
    table_version: int


def look_up(index: Index, layout: PromptLayout, domain_id: DomainId, salt: int, columns: Columns) -> Lookup:
    """Who has what of a prompt. O(blocks + segments), independent of the index's size; the found entries are now used.

    Args:
        domain_id: of the request, with its tenant: segments are looked up in it.
        salt: of the workers' domain.
    """
    run = BlockRun.of_chain(layout.block_hashes, salt, layout.block_size_tokens)
    rows = _leading_rows(index, run.keys)
    segment_rows = index.segments.find_all(domain_id, [segment.segment_hash for segment in layout.segments])
    device_blocks, blocks = _prefix_runs(index, rows)
    states, ready_at_s = _segment_states(index, segment_rows, columns)
    coverage = Coverage(
        holders=columns.holders,
        prefix_device_tokens=device_blocks[columns.slots] * layout.block_size_tokens,
        prefix_tokens=blocks[columns.slots] * layout.block_size_tokens,
        segment_states=states,
        segment_ready_at_s=ready_at_s,
    )
    return Lookup(coverage, layout, domain_id, run, rows, index.table.version)


def _leading_rows(index: Index, keys: HashArray) -> IntArray:
    """Rows up to the first block that nobody has. Most prompts share a short prefix or nearly all: try that first."""
    rows = index.blocks.find(keys[:_FIRST_BLOCKS])
    missing = (rows == ABSENT).nonzero()[0]
    if not len(missing) and len(keys) > _FIRST_BLOCKS:
        rows = np.concatenate([rows, index.blocks.find(keys[_FIRST_BLOCKS:])])
        missing = (rows == ABSENT).nonzero()[0]
    if not len(missing):
        return rows
    first_missing = int(missing[0])
    if index.claims.blocks.reach(int(keys[first_missing])):
        return _leading_rows(index, keys)
    return rows[:first_missing]


def _prefix_runs(index: Index, leading: IntArray) -> tuple[IntArray, IntArray]:
    """Leading runs of blocks by slot: on the device tier, and in either tier. A live claim counts as device."""
    table = index.table
    num_slots = len(table.device) * WORD_BITS
    if not len(leading):
        return np.zeros(num_slots, dtype=np.int64), np.zeros(num_slots, dtype=np.int64)
    table.touch(leading)
    device_runs, runs = [], []
    for device_word, claimed_word, host_word in zip(table.device, table.claimed, table.host, strict=True):
        device = device_word.take(leading) | claimed_word.take(leading)
        device_runs.append(_leading_ones(device))
        host = host_word.take(leading)
        runs.append(_leading_ones(device | host) if host.any() else device_runs[-1])
    if len(runs) == 1:
        return device_runs[0], runs[0]
    return np.concatenate(device_runs), np.concatenate(runs)


def _leading_ones(words: HashArray) -> IntArray:
    """For each bit, shape [64], how many of the words, from the first, have it set.

    Cumulated with AND, words only lose bits, so they change in at most 64 places.
    """
    common = np.bitwise_and.accumulate(words)
    runs = [0] * WORD_BITS
    left = int(common[0])
    lost = (common[1:] != common[:-1]).nonzero()[0] + 1
    for end, after in zip([*lost.tolist(), len(common)], [*common.take(lost).tolist(), 0], strict=True):
        ending = left & ~after
        while ending:
            lowest = ending & -ending
            runs[lowest.bit_length() - 1] = end
            ending ^= lowest
        left = after
    return np.array(runs, dtype=np.int64)


def _unpack(words: HashArray) -> npt.NDArray[np.uint8]:
    """Shape [..., words] to [..., words * 64] of 0 and 1, slot by slot."""
    little = np.ascontiguousarray(words, dtype="<u8")
    return np.unpackbits(little.view(np.uint8).reshape(*words.shape, _BYTES_PER_WORD), axis=-1, bitorder="little")


def _segment_states(
    index: Index, segment_rows: Sequence[int | None], columns: Columns
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]:
    """Shape [S, W] each, as in `Coverage`."""
    shape = (len(segment_rows), len(columns.slots))
    states = np.zeros(shape, dtype=np.uint8)
    ready_at_s = np.zeros(shape, dtype=np.float64)
    found = [at for at, row in enumerate(segment_rows) if row is not None]
    if not found:
        return states, ready_at_s
    rows = np.array([segment_rows[at] for at in found], dtype=np.int64)
    index.table.touch(rows)
    stored = _slot_bits(index.table.host, rows, columns.slots)
    states[found] = stored * STORED
    claimed = index.table.claimed[:, rows]
    if claimed.any():
        pending = _slot_bits(index.table.claimed, rows, columns.slots) & ~stored
        for number, column in np.argwhere(pending).tolist():
            at = found[number]
            expected_at_s = index.claims.segments.expected_at_s(int(rows[number]), int(columns.slots[column]))
            if expected_at_s is None:
                states[at, column] = UNCONFIRMED
            else:
                states[at, column] = IN_FLIGHT
                ready_at_s[at, column] = expected_at_s
    return states, ready_at_s


def _slot_bits(column: HashArray, rows: IntArray, slots: IntArray) -> npt.NDArray[np.uint8]:
    """Shape [rows, slots]."""
    words = column[:, rows].T
    bits = _unpack(words).reshape(len(rows), -1)
    return bits[:, slots]
