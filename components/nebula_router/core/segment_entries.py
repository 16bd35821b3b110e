"""Segments in the index: keys are the content's, so one entry serves every prompt that has the text anywhere."""

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple, cast

import numpy as np

from nebula_protocol.ids import DomainId, SegmentHash
from nebula_router.core.holder_table import HolderTable, Kind
from nebula_router.core.key_map import IntArray


class SegmentIdentity(NamedTuple):
    domain_id: DomainId
    segment_hash: SegmentHash
    num_tokens: int


class SegmentEntries:
    """Rows of segments by domain and hash.

    A plain dict: a prompt has dozens of segments, not a thousand, and all 128 bits of the hash count. Memory per entry:
    300 bytes and its row.
    """

    def __init__(self, table: HolderTable) -> None:
        self._table = table
        self._rows: dict[DomainId, dict[SegmentHash, int]] = {}
        self._identities: dict[int, SegmentIdentity] = {}

    def find(self, domain_id: DomainId, segment_hash: SegmentHash) -> int | None:
        rows = self._rows.get(domain_id)
        return rows.get(segment_hash) if rows else None

    def find_all(self, domain_id: DomainId, segment_hashes: Sequence[SegmentHash]) -> list[int | None]:
        rows = self._rows.get(domain_id)
        return list(map(rows.get, segment_hashes)) if rows else [None] * len(segment_hashes)

    def find_or_add(self, domain_id: DomainId, segments: Sequence[tuple[SegmentHash, int]]) -> IntArray:
        """Rows of segments, (hash, tokens) each, made where they are missing, and now the most recently used.

        At most `HolderTable.max_batch` of them are looked at. A segment that is named twice has the same row twice.
        """
        segments = segments[: self._table.max_batch]
        rows = self.find_all(domain_id, [segment_hash for segment_hash, _ in segments])
        known = [row for row in rows if row is not None]
        self._table.touch(np.array(known, dtype=np.int64))
        missing = {
            segment_hash: num_tokens
            for (segment_hash, num_tokens), row in zip(segments, rows, strict=True)
            if row is None
        }
        if missing:
            # First the rows: making room for them may release others of the domain.
            new = self._table.allocate(Kind.SEGMENT, len(missing)).tolist()
            self._rows.setdefault(domain_id, {}).update(zip(missing, new, strict=True))
            self._identities.update(
                zip(new, map(SegmentIdentity, repeat(domain_id), missing, missing.values()), strict=True)
            )
            rows = self.find_all(domain_id, [segment_hash for segment_hash, _ in segments])
        return np.array(rows, dtype=np.int64)

    def identity_of(self, row: int) -> SegmentIdentity:
        return self._identities[row]

    def forget(self, rows: IntArray) -> None:
        """The rows are about to be released."""
        for row in cast("list[int]", rows.tolist()):
            identity = self._identities.pop(row)
            of_domain = self._rows[identity.domain_id]
            del of_domain[identity.segment_hash]
            if not of_domain:
                del self._rows[identity.domain_id]
