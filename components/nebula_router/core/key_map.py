"""A hash map from 64-bit keys to integers that answers a whole prompt's keys at once."""

import array
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
# Average keys per bucket at which the map grows. At 3 of 8 ways 1.2 % of the buckets are full, at 1.5 none.
_MAX_LOAD = 3
_MIN_BUCKET_BITS = 4
_FEW = 16
_EMPTY_KEY = 0
_ONE = np.uint64(1)
_ALL_BITS = (1 << 64) - 1
# Fibonacci hashing (Knuth, TAOCP 3, 6.4): engines may name blocks with poorly spread numbers.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
# Eight comparisons are eight bytes, read as one little-endian word. With a 1 in way w alone, word * this >> 56 is w.
_WAY_OF_WORD = np.uint64(sum(way << 8 * (_WAYS - 1 - way) for way in range(_WAYS)))
_TOP_BYTE = np.uint64(56)


class KeyMap:
    """Buckets of eight ways (a bucket's keys fill one cache line); what finds its bucket full goes to a small dict.

    A dict takes 130 us for 1,024 random keys of 1e5, this 20 us: no Python object per key is touched. Values are >= 0.
    Memory: 16 bytes a way at 19 to 38 % fill, so 43 to 85 bytes a key. There are no probe chains, hence no tombstones.
    """

    __slots__ = ("_flat_keys", "_keys", "_num_buckets", "_overflow", "_shift", "_size", "_spilled", "_values")

    def __init__(self) -> None:
        self._allocate(1 << _MIN_BUCKET_BITS)

    def __len__(self) -> int:
        return self._size

    @property
    def num_spilled(self) -> int:
        """Keys that found their bucket full, and the key 0."""
        return len(self._overflow)

    def find(self, keys: HashArray) -> IntArray:
        """The keys' values, shape [keys]; `ABSENT` where a key has none."""
        buckets = self._bucket_of(keys)
        values, _ = self._look_up(keys, buckets)
        for at in self._spilled_among(values == ABSENT, buckets):
            values[at] = self._overflow.get(int(keys[at]), ABSENT)
        return values

    def setdefault(self, keys: HashArray, values: IntArray) -> IntArray:
        """The keys' values, shape [keys]; the given ones where a key had none. Half the work of finding and adding.

        `values` are distinct: of a key that is new and repeated, one value stands for all.
        """
        self._make_room(len(keys))
        return self._place(keys, values, self._bucket_of(keys))

    def put(self, keys: HashArray, values: IntArray) -> None:
        """Sets the keys' values, new or not. Where keys are repeated one of their values stands."""
        changed = self.setdefault(keys, values) != values
        if changed.any():
            self._overwrite(keys[changed], values[changed])

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
        self._flat_keys[slots] = _EMPTY_KEY
        self._values[slots] = ABSENT
        self._size -= len(held) - len(repeated)
        for at in self._spilled_among(values == ABSENT, buckets):
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
            np.concatenate([self._flat_keys[used], spilled_keys]),
            np.concatenate([self._values[used], spilled_values]),
        )

    def clear(self) -> None:
        self._allocate(1 << _MIN_BUCKET_BITS)

    def _allocate(self, num_buckets: int) -> None:
        self._num_buckets = num_buckets
        self._shift = np.uint64(64 - num_buckets.bit_length() + 1)
        num_ways = num_buckets * _WAYS
        # One way more than there are: where keys are written that must not be written anywhere.
        self._flat_keys: HashArray = np.zeros(num_ways + 1, dtype=np.uint64)
        self._keys = self._flat_keys[:num_ways].reshape(num_buckets, _WAYS)
        self._values: IntArray = np.full(num_ways + 1, ABSENT, dtype=np.int64)
        self._overflow: dict[int, int] = {}
        self._spilled = np.zeros(num_buckets, dtype=np.bool_)
        self._size = 0

    def _refill(self, num_buckets: int, keys: HashArray, values: IntArray) -> None:
        self._allocate(num_buckets)
        self._place(keys, values, self._bucket_of(keys))

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
        slots = _first_slot(buckets, match)
        values = self._values.take(slots)
        values[match == 0] = ABSENT
        # An empty way looks like the key 0 and holds ABSENT, so that key, always in the overflow, is answered right.
        return values, slots

    def _place(self, keys: HashArray, values: IntArray, buckets: IntArray) -> IntArray:
        """`setdefault` where the map is large enough."""
        if len(keys) <= _FEW:
            return np.array(self._place_each(keys, values, buckets), dtype=np.int64)
        match, free = self._compare(keys, buckets)
        is_new = match == 0
        way = np.where(is_new, free, match)
        aside = self._needs_care(keys, buckets, way, is_new).nonzero()[0]
        slots = _first_slot(buckets, way)
        slots[aside] = self._num_buckets * _WAYS
        is_new[aside] = False
        self._flat_keys[slots] = keys
        if is_new.all():
            self._values[slots] = values
        else:
            new = is_new.nonzero()[0]
            self._values[slots[new]] = values[new]
        standing = self._values.take(slots)
        won = self._flat_keys.take(slots) == keys
        self._size += int(np.count_nonzero(is_new & won & (standing == values)))
        # Where several new keys chose the same way, the last writer of both arrays has it, and the others look again.
        won[aside] = True
        lost = (~won).nonzero()[0]
        if len(aside):
            standing[aside] = self._place_each(keys[aside], values[aside], buckets[aside])
        if len(lost):
            standing[lost] = self._place(keys[lost], values[lost], buckets[lost])
        return standing

    def _compare(self, keys: HashArray, buckets: IntArray) -> tuple[HashArray, HashArray]:
        """Which ways of each key's bucket hold it, and which are free."""
        lines = self._keys.take(buckets, axis=0).reshape(-1)
        return (lines == keys.repeat(_WAYS)).view(np.uint64), (lines == _EMPTY_KEY).view(np.uint64)

    def _needs_care(self, keys: HashArray, buckets: IntArray, way: HashArray, is_new: BoolArray) -> BoolArray:
        """Keys that find their bucket full, that the overflow may have, or that look like an empty way."""
        care: BoolArray = way == 0
        if self._overflow:
            care |= is_new & self._spilled.take(buckets)
        if not keys.all():
            care |= keys == _EMPTY_KEY
        return care

    def _place_each(self, keys: HashArray, values: IntArray, buckets: IntArray) -> list[int]:
        """`_place` one by one, which for a few keys is less work."""
        return list(map(self._place_one, keys.tolist(), values.tolist(), buckets.tolist()))

    def _place_one(self, key: int, value: int, bucket: int) -> int:
        ways = self._keys[bucket].tolist()
        if key != _EMPTY_KEY:
            if key in ways:
                return int(self._values[bucket * _WAYS + ways.index(key)])
            if _EMPTY_KEY in ways and key not in self._overflow:
                way = ways.index(_EMPTY_KEY)
                self._keys[bucket, way] = key
                self._values[bucket * _WAYS + way] = value
                self._size += 1
                return value
        self._spilled[bucket] = True
        self._size += int(key not in self._overflow)
        return self._overflow.setdefault(key, value)

    def _spilled_among(self, among: BoolArray, buckets: IntArray) -> list[int]:
        """Numbers of those keys whose bucket once was full, so that the overflow may have them."""
        if not self._overflow:
            return []
        numbers: list[int] = (among & self._spilled.take(buckets)).nonzero()[0].tolist()
        return numbers

    def _overwrite(self, keys: HashArray, values: IntArray) -> None:
        found, slots = self._look_up(keys, self._bucket_of(keys))
        in_way = found != ABSENT
        self._values[slots[in_way]] = values[in_way]
        for at in (~in_way).nonzero()[0].tolist():
            self._overflow[int(keys[at])] = int(values[at])


def _first_slot(buckets: IntArray, words: HashArray) -> IntArray:
    """Flat numbers of the first ways that match, or of the bucket's first where none does."""
    # In memory order the first way is the lowest byte (little-endian).
    lowest = words & (~words + _ONE)
    return (buckets << _WAY_BITS) + ((lowest * _WAY_OF_WORD) >> _TOP_BYTE).view(np.int64)


def hash_array(values: Sequence[int]) -> HashArray:
    """Hashes from the wire, shape [values]; numbers beyond 64 bits are taken modulo 2**64, negative ones too."""
    try:
        packed = array.array("Q", values)
    except OverflowError:
        packed = array.array("Q", [value & _ALL_BITS for value in values])
    return np.array(packed, dtype=np.uint64)
