"""A kept value comes back equal and of the same types, and reading it runs no code."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
from collections import namedtuple
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.ledger.errors import LedgerValueError
from pillarbox.ledger.values import MAX_DEPTH, decode, encode

Point = namedtuple("Point", "x y")
zones = st.none() | st.just(dt.timezone.utc) | st.just(dt.timezone(dt.timedelta(hours=-5, minutes=-30)))
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**298, 10**302)
    | st.floats()
    | st.text(st.characters(exclude_categories=[]))
    | st.binary()
    | st.dates()
    | st.times()
    | st.datetimes(timezones=zones)
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.lists(st.floats(), min_size=6, max_size=12)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$tuple", "$bytes"]), inner, max_size=3)
        | st.dictionaries(st.integers() | st.dates() | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=10,
)


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types through and through, and NaN where NaN was."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one.hex() == other.hex()
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(same, one.items(), other.items()))
    if isinstance(one, dt.datetime | dt.time):
        return one == other and one.tzinfo == other.tzinfo and one.fold == other.fold
    return bool(one == other) and (not isinstance(one, Decimal) or str(one) == str(other))


@pytest.mark.contract("A kept value comes back as it was.")
@given(values)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    encoded = encode(value)
    encoded.json.encode()
    assert same(decode(*encoded), value)


@given(values)
def test_what_is_kept_is_json_of_the_standard(value: Any) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    json.loads(encode(value).json, parse_constant=refuse)


def test_an_embedding_is_kept_as_floats_beside_the_json() -> None:
    vector = [math.sqrt(n) for n in range(384)]
    encoded = encode({"embedding": vector, "model": "small"})
    assert len(encoded.json) < 50
    assert [list(part) for part in encoded.floats] == [vector]
    assert decode(*encoded) == {"embedding": vector, "model": "small"}


def test_a_list_that_changes_after_it_was_kept_is_kept_as_it_was() -> None:
    vector = [0.5] * 20
    encoded = encode(vector)
    vector[0] = 9.0
    assert decode(*encoded) == [0.5] * 20


@pytest.mark.parametrize("kind", ["float32", "float64", "int8", "uint16", "bool"])
def test_arrays_and_numbers_of_numpy_come_back_with_their_type(kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    array = (numpy.arange(6) % 2).astype(kind).reshape(2, 3)
    back = decode(*encode([array, array[1, 0], array.T]))
    assert [item.dtype for item in back] == [numpy.dtype(kind)] * 3
    assert (back[0] == array).all() and back[1] == array[1, 0] and (back[2] == array.T).all()
    assert back[1].shape == ()
    back[0][0, 0] = 1


@pytest.mark.contract
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "builtins.object cannot be kept"),
        ([{"a": Point(1, 2)}], "Point cannot be kept"),
        (1j, "complex"),
        (dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")), "datetime with a ZoneInfo"),
        (dt.time(1, tzinfo=dt.timezone.utc), "a time with a time zone"),
    ],
)
def test_a_value_without_a_form_is_refused_when_it_is_kept(value: Any, said: str) -> None:
    with pytest.raises(LedgerValueError, match=said):
        encode(value)


def test_containers_may_not_be_so_deep_that_they_could_not_be_read() -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return value

    assert decode(*encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(LedgerValueError, match="deep"):
        encode(nested(MAX_DEPTH + 1))
    tuples: Any = 1
    while True:
        try:
            encoded = encode((tuples,))
        except LedgerValueError:
            break
        tuples = (tuples,)
        assert decode(*encoded) == tuples


class Alarm:
    """Unpickling it would say so."""

    rung = False

    def __reduce__(self) -> Any:
        return ring, ()


def ring() -> str:
    Alarm.rung = True
    return "rung"


@pytest.mark.contract
def test_a_value_that_is_said_to_be_pickled_is_refused_and_runs_no_code() -> None:
    with pytest.raises(LedgerValueError, match="unknown form"):
        decode('{"$pickle": 0}', [], [pickle.dumps(Alarm())])
    assert not Alarm.rung
    with pytest.raises(LedgerValueError, match="cannot be kept"):
        encode(Alarm())


@pytest.mark.parametrize(
    "text", ["", "{", '{"$later": 1}', '{"$bytes": 5}', '{"$date": "x"}', '{"$tuple": 1}', '{"$dict": [1]}']
)
def test_what_cannot_be_read_is_an_error_and_no_value(text: str) -> None:
    with pytest.raises(LedgerValueError):
        decode(text, [], [])
