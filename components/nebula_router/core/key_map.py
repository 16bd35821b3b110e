"""A hash map from 64-bit keys to integers that answers a whole prompt's keys at once."""

import array
import sys
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from nebula_protocol.hashing import HashArray

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

ABSENT = -1
"""Value of a key that is not in the map."""

_WAYS = 8
_WAY_BITS = np.int64(3)
# Average keys per bucket at which the map grows. At 4 of 8 ways 0.8 % of the keys find their bucket full.
_MAX_LOAD = 4
_MIN_BUCKET_BITS = 4
_EMPTY_KEY = np.uint64(0)
_ONE = np.uint64(1)
_ALL_BITS = (1 << 64) - 1
# Fibonacci hashing (Knuth, TAOCP 3, 6.4): engines may name blocks with poorly spread numbers.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
# Eight comparisons are eight bytes, read as one word. For a word with 1 in way w alone, word * this >> 56 is w.
_WAY_OF_WORD = np.uint64(
    sum(way << (8 * (_WAYS - 1 - way if sys.byteorder == "little" else way)) for way in range(_WAYS))
)
_TOP_BYTE = np.uint64(56)


class KeyMap:
    """Buckets of eight ways (a bucket's keys fill one cache line); what finds its bucket full goes to a small dict.

    A dict takes 130 us for 1,024 random keys of 1e5, this 20 us: no Python object per key is touched. Values are >= 0.
    Memory: 16 bytes a way at 25 to 50 % fill, so 32 to 64 bytes a key. There are no probe chains, hence no tombstones.
    """

    __slots__ = ("_keys", "_num_buckets", "_overflow", "_shift", "_size", "_spilled", "_values")

    def __init__(self) -> None:
        self._allocate(1 << _MIN_BUCKET_BITS)

    def __len__(self) -> int:
        return self._size

    def find(self, keys: HashArray) -> IntArray:
        """The keys' values, shape [keys]; `ABSENT` where a key has none."""
        buckets = self._bucket_of(keys)
        values, _ = self._look_up(keys, buckets)
        if self._overflow:
            for at in self._maybe_spilled(values, buckets).tolist():
                values[at] = self._overflow.get(int(keys[at]), ABSENT)
        return values

    def insert(self, keys: HashArray, values: IntArray) -> IntArray:
        """Adds keys that the map lacks; `values` are distinct.

        Returns:
            The value that now stands for each key: another one than given where a key is repeated in `keys`.
        """
        self._make_room(len(keys))
        standing = self._place(keys, values, self._bucket_of(keys))
        self._size += int(np.count_nonzero(standing == values))
        return standing

    def put(self, keys: HashArray, values: IntArray) -> None:
        """Sets the keys' values, new or not. Where keys are repeated one of their values stands."""
        known = self.find(keys) != ABSENT
        if known.any():
            self._overwrite(keys[known], values[known])
            keys, values = keys[~known], values[~known]
        if len(keys):
            self.insert(keys, values)

    def pop(self, keys: HashArray) -> IntArray:
        """Removes the keys; their values as `find` gives them, but a repeated key has its value only once."""
        buckets = self._bucket_of(keys)
        values, slots = self._look_up(keys, buckets)
        held = np.flatnonzero(values != ABSENT)
        slots = slots[held]
        # Each writes its number into its way; of those that share one, only the last finds itself there again.
        self._values[slots] = held
        repeated = held[self._values.take(slots) != held]
        values[repeated] = ABSENT
        self._keys.reshape(-1)[slots] = _EMPTY_KEY
        self._values[slots] = ABSENT
        self._size -= len(held) - len(repeated)
        if self._overflow:
            for at in self._maybe_spilled(values, buckets).tolist():
                values[at] = self._overflow.pop(int(keys[at]), ABSENT)
                self._size -= int(values[at] != ABSENT)
        return values

    def would_grow(self, num_keys: int) -> bool:
        return self._size + num_keys > self._num_buckets * _MAX_LOAD

    def retain(self, keep: Callable[[IntArray], BoolArray]) -> None:
        """Drops the keys whose values `keep` does not want. O(capacity)."""
        keys, values = self.items()
        kept = keep(values)
        if not kept.all():
            self._refill(self._num_buckets, keys[kept], values[kept])

    def items(self) -> tuple[HashArray, IntArray]:
        """All keys and their values, in no order. O(capacity)."""
        used = np.flatnonzero(self._values != ABSENT)
        spilled_keys = np.fromiter(self._overflow.keys(), dtype=np.uint64, count=len(self._overflow))
        spilled_values = np.fromiter(self._overflow.values(), dtype=np.int64, count=len(self._overflow))
        return (
            np.concatenate([self._keys.reshape(-1)[used], spilled_keys]),
            np.concatenate([self._values[used], spilled_values]),
        )

    def clear(self) -> None:
        self._allocate(1 << _MIN_BUCKET_BITS)

    def _allocate(self, num_buckets: int) -> None:
        self._num_buckets = num_buckets
        self._shift = np.uint64(64 - num_buckets.bit_length() + 1)
        self._keys = np.zeros((num_buckets, _WAYS), dtype=np.uint64)
        self._values = np.full(num_buckets * _WAYS, ABSENT, dtype=np.int64)
        self._overflow: dict[int, int] = {}
        self._spilled = np.zeros(num_buckets, dtype=np.bool_)
        self._size = 0

    def _refill(self, num_buckets: int, keys: HashArray, values: IntArray) -> None:
        self._allocate(num_buckets)
        self.insert(keys, values)

    def _make_room(self, num_keys: int) -> None:
        if not self.would_grow(num_keys):
            return
        num_buckets = self._num_buckets
        while self._size + num_keys > num_buckets * _MAX_LOAD:
            num_buckets *= 2
        self._refill(num_buckets, *self.items())

    def _bucket_of(self, keys: HashArray) -> IntArray:
        return ((keys * _SPREAD) >> self._shift).view(np.int64)

    def _look_up(self, keys: HashArray, buckets: IntArray) -> tuple[IntArray, IntArray]:
        """Values of the keys that lie in a way, and those ways."""
        match = (self._keys.take(buckets, axis=0).reshape(-1) == keys.repeat(_WAYS)).view(np.uint64)
        slots = _slot_of(buckets, match & (~match + _ONE))
        values = self._values.take(slots)
        values[match == 0] = ABSENT
        # An empty way looks like the key 0 and holds ABSENT, so that key, always in the overflow, is answered right.
        return values, slots

    def _place(self, keys: HashArray, values: IntArray, buckets: IntArray) -> IntArray:
        """Puts each key into a free way of its bucket, or into the overflow; the values that stand for them then."""
        flat_keys = self._keys.reshape(-1)
        free = (self._keys.take(buckets, axis=0) == _EMPTY_KEY).view(np.uint64).reshape(-1)
        unplaceable = (free == 0) | (keys == _EMPTY_KEY)
        if unplaceable.any():
            return self._place_apart(keys, values, buckets, unplaceable)
        slots = _slot_of(buckets, free & (~free + _ONE))
        # Where several chose the same way, the last writer of both arrays has it, and the others look again.
        flat_keys[slots] = keys
        self._values[slots] = values
        lost = np.flatnonzero(flat_keys.take(slots) != keys)
        standing = self._values.take(slots)
        if len(lost):
            standing[lost] = self._place(keys[lost], values[lost], buckets[lost])
        return standing

    def _place_apart(self, keys: HashArray, values: IntArray, buckets: IntArray, unplaceable: BoolArray) -> IntArray:
        standing = values.copy()
        for at in np.flatnonzero(unplaceable).tolist():
            standing[at] = self._overflow.setdefault(int(keys[at]), int(values[at]))
            self._spilled[buckets[at]] = True
        rest = np.flatnonzero(~unplaceable)
        if len(rest):
            standing[rest] = self._place(keys[rest], values[rest], buckets[rest])
        return standing

    def _maybe_spilled(self, values: IntArray, buckets: IntArray) -> IntArray:
        """Numbers of the keys that were not found and whose bucket once was full."""
        return np.flatnonzero((values == ABSENT) & self._spilled.take(buckets))

    def _overwrite(self, keys: HashArray, values: IntArray) -> None:
        found, slots = self._look_up(keys, self._bucket_of(keys))
        in_way = found != ABSENT
        self._values[slots[in_way]] = values[in_way]
        for at in np.flatnonzero(~in_way).tolist():
            self._overflow[int(keys[at])] = int(values[at])


def _slot_of(buckets: IntArray, one_way: HashArray) -> IntArray:
    """Flat numbers of ways; `one_way` has a single byte 1, in the place of the way (or none, for the first)."""
    return (buckets << _WAY_BITS) + ((one_way * _WAY_OF_WORD) >> _TOP_BYTE).view(np.int64)


def hash_array(values: Sequence[int]) -> HashArray:
    """Hashes from the wire, shape [values]; numbers beyond 64 bits are taken modulo 2**64, negative ones too."""
    try:
        packed = array.array("Q", values)
    except OverflowError:
        packed = array.array("Q", [value & _ALL_BITS for value in values])
    return np.array(packed, dtype=np.uint64)
