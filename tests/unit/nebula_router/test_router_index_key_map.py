"""The map from 64-bit keys to numbers."""

import numpy as np
import pytest

from nebula_router.core.key_map import ABSENT, KeyMap, hash_array


def keys(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def filled(size: int) -> tuple[KeyMap, np.ndarray]:
    """Scattered keys with their positions as values."""
    entries = np.random.default_rng(7).integers(0, 2**64, size, dtype=np.uint64)
    mapping = KeyMap()
    mapping.setdefault(entries, np.arange(size))
    return mapping, entries


def test_what_was_put_in_is_found() -> None:
    mapping, entries = filled(5000)
    assert len(mapping) == 5000
    np.testing.assert_array_equal(mapping.find(entries), np.arange(5000))


def test_what_was_not_put_in_is_absent() -> None:
    mapping, _ = filled(5000)
    assert mapping.find(keys(1, 2, 3)).tolist() == [ABSENT] * 3


@pytest.mark.parametrize("step", [1, 16, 1 << 32, 1 << 60])
def test_evenly_spaced_keys_do_not_crowd(step: int) -> None:
    mapping = KeyMap()
    entries = np.arange(1, 4001, dtype=np.uint64) * np.uint64(step)
    mapping.setdefault(np.unique(entries), np.arange(len(np.unique(entries))))
    assert len(mapping) == len(np.unique(entries))
    # Fewer than 3 % find their bucket full (0.8 % would by chance), so that look-ups stay vectorised.
    assert mapping.num_spilled < 0.03 * 4000


def test_setdefault_gives_the_values_that_stand() -> None:
    mapping = KeyMap()
    assert mapping.setdefault(keys(1, 2), numbers(10, 20)).tolist() == [10, 20]
    assert mapping.setdefault(keys(2, 3), numbers(21, 30)).tolist() == [20, 30]
    assert len(mapping) == 3


def test_one_value_stands_for_a_repeated_key() -> None:
    for repeats in (2, 40):
        mapping = KeyMap()
        standing = mapping.setdefault(keys(*[9] * repeats), np.arange(repeats)).tolist()
        assert len(set(standing)) == 1
        assert (len(mapping), mapping.find(keys(9)).tolist()) == (1, standing[:1])


def test_put_overwrites() -> None:
    mapping, entries = filled(1000)
    mapping.put(entries, np.arange(1000) + 5)
    np.testing.assert_array_equal(mapping.find(entries), np.arange(1000) + 5)
    assert len(mapping) == 1000


def test_pop_removes_and_tells_what_was_there() -> None:
    mapping, entries = filled(1000)
    np.testing.assert_array_equal(mapping.pop(entries[:500]), np.arange(500))
    assert mapping.find(entries[:500]).tolist() == [ABSENT] * 500
    np.testing.assert_array_equal(mapping.find(entries[500:]), np.arange(500, 1000))
    assert len(mapping) == 500


def test_pop_gives_a_repeated_key_once() -> None:
    mapping = KeyMap()
    mapping.setdefault(keys(1), numbers(10))
    assert sorted(mapping.pop(keys(1, 1, 2)).tolist()) == [ABSENT, ABSENT, 10]
    assert len(mapping) == 0


def test_the_key_zero_is_a_key() -> None:
    mapping = KeyMap()
    assert mapping.find(keys(0)).tolist() == [ABSENT]
    mapping.setdefault(keys(0, 1), numbers(5, 6))
    assert mapping.find(keys(0, 1)).tolist() == [5, 6]
    mapping.put(keys(0), numbers(7))
    assert mapping.pop(keys(0)).tolist() == [7]
    assert (mapping.find(keys(0)).tolist(), len(mapping)) == ([ABSENT], 1)


def test_keys_of_one_bucket_spill_and_are_found_all_the_same() -> None:
    # Keys that differ by multiples of 2**60 in the product fall into the same of at most 16 buckets.
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    crowd = hash_array([(inverse * at) % 2**64 for at in range(1, 41)])
    mapping = KeyMap()
    assert mapping.setdefault(crowd, np.arange(40)).tolist() == list(range(40))
    assert mapping.num_spilled == 32
    assert mapping.find(crowd).tolist() == list(range(40))
    mapping.put(crowd, np.arange(40) + 100)
    assert mapping.pop(crowd[:20]).tolist() == list(range(100, 120))
    # Ways are free again, but those in the overflow must not get a second value.
    assert mapping.setdefault(crowd, np.arange(40)).tolist() == [*range(20), *range(120, 140)]
    assert len(mapping) == 40


def test_retain_keeps_what_is_wanted() -> None:
    mapping, entries = filled(1000)
    mapping.retain(lambda values: values % 2 == 0)
    assert len(mapping) == 500
    np.testing.assert_array_equal(mapping.find(entries[::2]), np.arange(0, 1000, 2))
    assert mapping.find(entries[1::2]).tolist() == [ABSENT] * 500


def test_items_are_all_pairs() -> None:
    mapping, entries = filled(200)
    mapping.setdefault(keys(0), numbers(200))
    found_keys, values = mapping.items()
    assert dict(zip(found_keys.tolist(), values.tolist(), strict=True)) == {
        **dict(zip(entries.tolist(), range(200), strict=True)),
        0: 200,
    }


def test_an_empty_map_has_nothing() -> None:
    mapping, _ = filled(1000)
    mapping.clear()
    assert (len(mapping), len(mapping.items()[0])) == (0, 0)


def test_numbers_from_the_wire_are_taken_modulo_2_to_the_64() -> None:
    assert hash_array([0, -1, 2**64 + 3]).tolist() == [0, 2**64 - 1, 3]
    assert hash_array([]).dtype == np.uint64
