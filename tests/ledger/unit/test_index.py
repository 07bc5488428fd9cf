"""The index finds every record of a key, first ones first, however they were added."""

from __future__ import annotations

import random
import sys
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.ledger.key_index import KeyIndex


def small_index() -> KeyIndex:
    """An index with sorted runs from a handful of records on."""
    return KeyIndex(max_unsorted=5, min_run_ratio=2)


# Few prefixes, so that keys share them.
keys = st.integers(0, 5).flatmap(
    lambda prefix: st.integers(0, 2).map(lambda rest: prefix.to_bytes(8, "big") + rest.to_bytes(8, "big"))
)


@settings(deadline=None)
@given(st.lists(st.lists(keys, max_size=9) | keys, max_size=25))
def test_an_index_agrees_with_a_dict(steps: list[list[bytes] | bytes]) -> None:
    index = small_index()
    expected: dict[bytes, list[int]] = defaultdict(list)
    count = 0
    for step in steps:
        if isinstance(step, list):
            index.add(b"".join(step))
            for key in step:
                expected[key[:8]].append(count)
                count += 1
        else:
            assert list(index.find(step)) == expected[step[:8]]
    assert index.count == count
    for prefix, numbers in expected.items():
        assert list(index.find(prefix + bytes(8))) == numbers
    # As the machine has numbers.
    prefixes = [*expected, b"absent.."]
    repeated = index.repeated([int.from_bytes(prefix, sys.byteorder) for prefix in prefixes])
    assert index.may_have_any([prefixes[-1] + bytes(8)]) is False
    for prefix, numbers in expected.items():
        assert index.may_have_any([b"absent.." + bytes(8), prefix + bytes(8)]) == bool(numbers)
    assert repeated == [place for place, prefix in enumerate(prefixes) if len(expected[prefix]) > 1]


def test_records_of_every_run_are_found_and_no_others() -> None:
    random.seed(7)
    many = [random.randbytes(16) for _ in range(3000)]
    index = small_index()
    for start in range(0, 3000, 50):
        index.add(b"".join(many[start : start + 50]))
        assert list(index.find(many[start])) == [start]
    # Each is half as large as the one before, or smaller.
    assert len(index._runs) <= 12
    assert [[*index.find(key)] for key in many] == [[number] for number in range(3000)]
    assert not any(index.find(random.randbytes(16)) for _ in range(1000))
