"""Keys and fingerprints of rows, as functions of what a row has."""

from __future__ import annotations

import copy
import datetime as dt
import enum
import hashlib
import os
import subprocess
import sys
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.ledger import KeyMaker
from pillarbox.ledger.errors import LedgerValueError
from pillarbox.ledger.keys import (
    KEY_BYTES,
    RowIdentity,
    canonical,
    canonical_column,
    config_hash,
    fingerprint,
    identity_of_values,
)
from pillarbox.testing.identity import identity
from pillarbox.testing.unclean import neighbours, unclean_values
from tests.ledger.test_key_maker import Point, cells

NAN = float("nan")


class Colour(enum.IntEnum):
    RED = 1


SAMPLES: dict[str, Any] = {
    "none": None,
    "true": True,
    "one": 1,
    "float": 1.0,
    "zero": 0.0,
    "minus zero": -0.0,
    "nan": NAN,
    "infinity": float("inf"),
    "text": "1",
    "bytes": b"1",
    "list": [1],
    "tuple": (1,),
    "nested": [[1], [2]],
    "flat": [[1, 2]],
    "empty list": [],
    "empty tuple": (),
    "empty dict": {},
    "dict": {"a": 1, "b": 2},
    "set": {1, 2},
    "date": dt.date(2026, 1, 2),
    "datetime": dt.datetime(2026, 1, 2),
    "fold": dt.datetime(2026, 1, 2, fold=1),
    "aware": dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
    "time": dt.time(1, 2),
    "timedelta": dt.timedelta(1),
    "decimal": Decimal("1.0"),
    "longer decimal": Decimal("1.00"),
    "uuid": uuid.UUID(int=1),
    "large": 10**200,
}


@pytest.mark.contract
def test_values_that_differ_in_type_or_content_have_different_fingerprints() -> None:
    assert len({fingerprint(value) for value in SAMPLES.values()}) == len(SAMPLES)
    assert {len(fingerprint(value)) for value in SAMPLES.values()} == {KEY_BYTES}


@pytest.mark.contract
def test_a_fingerprint_does_not_depend_on_the_process_or_its_hash_seed() -> None:
    script = (
        "from tests.ledger.unit.test_keys import SAMPLES, fingerprint\n"
        "print(*(fingerprint(value).hex() for value in SAMPLES.values()))"
    )
    here = [fingerprint(value).hex() for value in SAMPLES.values()]
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == here


@pytest.mark.contract
def test_fingerprints_are_those_of_earlier_versions() -> None:
    # A change of one of these makes every ledger in use call everything again.
    assert canonical([None, True, 1, 1.0, "é", b"\0", (), {"b": 1, "a": None}, NAN]) == (
        b"l\x09\0\0\0\0\0\0\0nTi\x01\0\0\0\0\0\0\x001f\0\0\0\0\0\0\xf0?s\x02\0\0\0\0\0\0\0\xc3\xa9b\x01\0\0\0\0\0\0\0\0"
        b"t\0\0\0\0\0\0\0\0d\x02\0\0\0\0\0\0\0s\x01\0\0\0\0\0\0\0ans\x01\0\0\0\0\0\0\0bi\x01\0\0\0\0\0\0\x001fnan-----"
    )
    assert KeyMaker()({"text": "hello"}).hex() == "5402cee2e587b0e31ada8821603b0f55"
    assert KeyMaker(["id"])({"id": 7}).hex() == "f181c5637cfd5e1175b34a5091752b65"
    assert config_hash({"model": "small"}) == "c22317f79c7e81c7"


def test_what_is_equal_by_its_meaning_has_one_fingerprint() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(NAN) == fingerprint(-NAN) == fingerprint(float("inf") - float("inf"))
    assert fingerprint(Point(1, 2)) == fingerprint((1, 2))
    assert fingerprint(Colour.RED) == fingerprint(1)
    assert fingerprint(bytearray(b"x")) == fingerprint(b"x") == fingerprint(memoryview(b"x"))


def test_numbers_of_numpy_count_as_those_of_python_and_arrays_by_type_shape_and_content() -> None:
    numpy = pytest.importorskip("numpy")
    assert fingerprint(numpy.int64(3)) == fingerprint(3)
    assert fingerprint(numpy.float64(0.5)) == fingerprint(0.5)
    flat = numpy.arange(6)
    arrays = [flat, flat.reshape(2, 3), flat.reshape(3, 2), flat.astype("int32")]
    assert len({fingerprint(array) for array in arrays}) == 4
    assert fingerprint(numpy.asfortranarray(flat.reshape(2, 3))) == fingerprint(flat.reshape(2, 3))


@pytest.mark.contract(
    "A time of NumPy that Python has no time for is not a number in a ledger, a missing one not a null.",
    convicts=["times_fingerprinted_as_numbers"],
)
def test_values_of_numpy_that_python_has_no_value_for_have_fingerprints_of_their_own() -> None:
    np = pytest.importorskip("numpy")
    missing = np.datetime64("NaT", "us")
    values = [5, None, missing, np.timedelta64("NaT", "us"), 1.0, (1, 2.0)]
    values += [np.datetime64(5, unit) for unit in ("ns", "ps", "Y")]
    values += [np.timedelta64(5, unit) for unit in ("ns", "ps", "Y", "M")]
    values += [np.longdouble(1), np.longdouble(1) + np.finfo(np.longdouble).eps]
    shapes = ("i8,i8", [("x", "i8"), ("y", "i8")], "i8,f8")
    values += [np.frombuffer(np.array([1, 2]).tobytes(), shape) for shape in shapes]
    assert len({fingerprint(value) for value in values}) == len(values)
    assert [fingerprint(copy.deepcopy(value)) for value in values] == [*map(fingerprint, values)]
    # What Python has too is that.
    assert fingerprint(np.datetime64("2026-01-02T00:00", "us")) == fingerprint(dt.datetime(2026, 1, 2))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(plain, plain)
def test_two_values_share_a_canonical_form_only_if_they_are_written_alike(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (normal(one) == normal(other))


@given(unclean_values())
def test_values_that_look_alike_have_canonical_forms_of_their_own(value: Any) -> None:
    written = identity(value)
    assert canonical(copy.deepcopy(value)) == canonical(value)
    for other in neighbours(value):
        assert (canonical(other) == canonical(value)) == (identity(other) == written)


@given(plain.filter(lambda value: value is not None), plain)
def test_the_identity_of_a_row_is_made_of_the_canonical_form_of_its_values(key: Any, value: Any) -> None:
    found, input = identity_of_values(["id"], None)({"id": key, "text": value})
    content = hashlib.blake2b(canonical(value), digest_size=8, person=b"input").digest()
    assert found == fingerprint([key], "key")
    assert input == fingerprint("text", "name")[:4] + content


def normal(value: Any) -> str:
    """A text that is the same for the same value: what `repr` gives, with the keys of dicts sorted."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key!r}:{normal(item)}" for key, item in value.items())) + "}"
    return "[" + ",".join(map(normal, value)) + "]" if isinstance(value, list) else repr(value)


@pytest.mark.parametrize("value", [object(), [1, object()], {"a": 1j}, print])
def test_a_value_without_a_fingerprint_is_refused_by_its_type(value: Any) -> None:
    with pytest.raises(LedgerValueError, match="has no fingerprint: name the columns"):
        fingerprint(value)


def test_a_configuration_counts_by_content_and_not_by_order() -> None:
    assert config_hash({"a": 1, "b": [2]}) == config_hash({"b": [2], "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
    assert config_hash(None) == config_hash({})


@given(st.lists(st.tuples(cells, st.text(), cells), min_size=1, max_size=5), st.booleans())
def test_rows_by_columns_have_the_keys_and_inputs_that_each_has_alone(
    rows: list[tuple[Any, str, Any]], is_plain: bool
) -> None:
    if is_plain:
        rows = [(number, text, text) for number, (_, text, _) in enumerate(rows)]

    def made() -> RowIdentity:
        return RowIdentity(
            lambda row: row[:2],
            lambda row: (("c",), row[2:]),
            lambda row: row,
            columns=lambda some: (
                [[r[0] for r in some], [r[1] for r in some]],
                ("c",),
                [[r[2] for r in some]],
            ),
        )

    keys, inputs = made().of_rows(rows)
    alone = made()
    assert [*zip(keys, inputs, strict=True)] == [alone(row) for row in rows]


@pytest.mark.contract(
    "Rows without a key have the keys by columns that each has alone, equal ones with their count.",
    convicts=["contents_by_columns_uncounted", "contents_by_columns_unsized"],
)
@given(
    st.lists(st.tuples(cells, st.sampled_from("ab"), st.integers(0, 1)), min_size=1, max_size=8), st.data()
)
def test_rows_without_a_key_have_the_keys_by_columns_that_each_has_alone(
    rows: list[tuple[Any, str, int]], data: st.DataObject
) -> None:
    if data.draw(st.booleans(), "plain"):
        rows = [(text, text, number) for _, text, number in rows]
    at = data.draw(st.integers(0, len(rows) - 1), "the first row of the second slice")
    width = data.draw(st.integers(0, 3), "columns")
    shares = data.draw(st.booleans(), "equal rows share one key")

    def made() -> RowIdentity:
        identity = RowIdentity(
            None,
            lambda row: ((), ()),
            lambda row: row[:width],
            names=("a", "b", "c"),
            contents=lambda some: [*zip(*[row[:width] for row in some], strict=True)],
        )
        return identity.sharing() if shares else identity

    by_columns, alone = made(), made()
    found = [by_columns.of_rows(some) for some in (rows[:at], rows[at:]) if some]
    pairs = [pair for keys, inputs in found for pair in zip(keys, inputs, strict=True)]
    assert pairs == [alone(row) for row in rows]


NESTED = cells | st.dictionaries(st.sampled_from("abc"), cells, max_size=3) | st.lists(cells, max_size=3)


@pytest.mark.contract(
    "Values of a block have the canonical forms that each has alone, whatever is in each other.",
    convicts=["columns_of_dicts_unsorted", "dicts_of_other_names_by_columns"],
)
@given(st.data())
def test_values_of_a_block_have_the_forms_that_each_has_alone(data: st.DataObject) -> None:
    width = data.draw(st.integers(0, 3), "width")
    names = data.draw(st.permutations("abcd"), "names")[:width]
    # Most blocks are alike, and then differ in one value.
    alike = {
        "dicts": st.fixed_dictionaries(dict.fromkeys(names, NESTED)),
        "tuples": st.tuples(*[NESTED] * width),
        "lists": st.tuples(*[NESTED] * width).map(list),
        "texts": st.text(),
        "numbers": st.integers(),
    }[data.draw(st.sampled_from(["dicts", "tuples", "lists", "texts", "numbers"]), "kind")]
    values: list[Any] = data.draw(st.lists(alike, min_size=1, max_size=6), "values")
    if data.draw(st.booleans(), "one differs"):
        values[data.draw(st.integers(0, len(values) - 1))] = data.draw(NESTED)
    # The names of a dict stand in an order of their own, and another dict may have others.
    ordered = [{"b": number, "a": str(number)} for number in range(5)]
    for block in (values, ordered, [*ordered, {"c": 1, "a": "1"}]):
        assert canonical_column(block) == [*map(canonical, block)]


@pytest.mark.parametrize("key", [None, ["id"]])
@pytest.mark.parametrize("inputs", [None, ["text"]])
@given(
    st.lists(
        st.fixed_dictionaries({"id": st.none() | st.integers(0, 2), "text": cells}, optional={"more": cells}),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_dicts_of_a_block_have_the_keys_and_inputs_that_each_has_alone(
    key: list[str] | None, inputs: list[str] | None, rows: list[dict[str, Any]], shares: bool
) -> None:
    def made() -> RowIdentity:
        identity = identity_of_values(key, inputs)
        return identity.sharing() if shares else identity

    keys, prints = made().of_rows(rows)
    alone = made()
    assert [*zip(keys, prints, strict=True)] == [alone(row) for row in rows]


def test_a_column_without_a_fingerprint_is_named_by_columns_too() -> None:
    by_thing = RowIdentity(
        lambda row: row[:1],
        lambda row: (("thing",), row[1:]),
        lambda row: row,
        columns=lambda some: ([[row[0] for row in some]], ("thing",), [[row[1] for row in some]]),
    )
    with pytest.raises(LedgerValueError, match="thing"):
        by_thing.of_rows([(1, object())])
