"""Lists of numbers taken out of JSON: the numbers are those of a reader of doubles, cut to float32."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.kernel.number_lists import take_number_lists
from tests.search import examples

MARK = "-0.0e-0"


class Row:
    """A list that was taken, by its place."""

    def __init__(self, place: int) -> None:
        self.place = place


def put_back(taken: tuple[bytes, bytearray, bytearray]) -> Any:
    """The value of a text whose lists were taken, with the lists in their places."""
    rest, floats, ends = taken
    numbers, stops = np.frombuffer(floats, np.float32), [0, *np.frombuffer(ends, np.uint64).tolist()]
    assert stops[-1] == len(numbers)

    def number(text: str) -> Any:
        return Row(int(text[len(MARK) :])) if text.startswith(MARK) else float(text)

    def lists_of(value: Any) -> Any:
        if isinstance(value, Row):
            return numbers[stops[value.place] : stops[value.place + 1]].tolist()
        if isinstance(value, list):
            return [lists_of(each) for each in value]
        if isinstance(value, dict):
            return {name: lists_of(each) for name, each in value.items()}
        return value

    return lists_of(json.loads(rest, parse_float=number))


def cut(value: Any) -> Any:
    """The value with the numbers of its lists as float32; a list with others than numbers stays."""
    if isinstance(value, list):
        if value and all(type(each) in (int, float) for each in value):
            return np.array(value, np.float64).astype(np.float32).tolist()
        return [cut(each) for each in value]
    return {name: cut(each) for name, each in value.items()} if isinstance(value, dict) else value


def number_of(text: str) -> float | None:
    """The number, read in a list of its own; None if it is left to another reader."""
    taken = take_number_lists(f"[{text}]".encode())
    if taken is None:
        return None
    assert taken[0].decode() == f"{MARK}0"
    (number,) = np.frombuffer(taken[1], np.float32).tolist()
    return float(number)


NUMBERS = st.one_of(
    st.integers(-(10**18), 10**18),
    st.floats(-1e30, 1e30, allow_nan=False).filter(lambda number: number == 0.0 or abs(number) > 1e-30),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.text(max_size=5), st.lists(NUMBERS, min_size=1, max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.contract
@settings(max_examples=examples(500))
@given(VALUES, st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]), st.booleans())
def test_a_text_whose_lists_are_put_back_is_what_it_was(
    value: Any, separators: tuple[str, str], is_ascii: bool
) -> None:
    text = json.dumps(value, separators=separators, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    taken = take_number_lists(text)
    if taken is not None:
        rest = taken[0].decode("utf-8", "surrogatepass").encode("utf-8", "surrogatepass")
        assert put_back((rest, *taken[1:])) == cut(value)
    else:
        # Numbers next to the middle of two of float32 may be left, each list of the value for itself.
        assert MARK.encode() not in text


def written(rng: random.Random) -> str:
    """A number as a program may write it: short or long, with zeros in front and behind, with exponents."""
    number = rng.gauss(0.0, 1.0) * 10.0 ** rng.randrange(-12, 12)
    kind = rng.randrange(7)
    if kind == 0:
        return repr(number)
    if kind == 1:
        return repr(float(np.float32(number)))
    if kind == 2:
        return f"{number:.{rng.randrange(1, 40)}f}"
    if kind == 3:
        return f"{number:.{rng.randrange(0, 30)}{rng.choice('eE')}}"
    if kind == 4:
        return str(rng.randrange(-(10 ** rng.randrange(1, 30)), 10 ** rng.randrange(1, 30)))
    if kind == 5:
        return f"{rng.randrange(10 ** rng.randrange(1, 25))}.{'0' * rng.randrange(12)}{rng.randrange(10**9)}"
    return f"0.{'0' * rng.randrange(30)}{rng.randrange(10 ** rng.randrange(1, 25))}e+{rng.randrange(20)}"


@pytest.mark.contract(
    "A number in a list is the float32 of its double, however it is written.",
    convicts=["zeros_behind_the_point_count_twice"],
)
def test_a_number_is_the_float32_of_its_double_however_it_is_written() -> None:
    rng = random.Random(61)
    left = 0
    for _ in range(examples(20_000)):
        text = written(rng)
        found = number_of(text)
        if found is None:
            left += 1
            continue
        assert found == float(np.float32(float(text))), text
    assert left < examples(20_000) / 100


@pytest.mark.contract(
    "A number next to the middle of two of float32 is right, or is left to another reader.",
    convicts=["middle_of_two_is_sure"],
)
def test_a_number_next_to_the_middle_of_two_of_float32_is_right_or_left_to_another_reader() -> None:
    rng = random.Random(62)
    left = 0
    for _ in range(examples(20_000)):
        lower = np.float32(rng.gauss(0.0, 1.0))
        middle = (float(lower) + float(np.nextafter(lower, np.float32(9.0)))) / 2
        number = middle
        for _ in range(rng.randrange(4)):
            number = float(np.nextafter(number, rng.choice([-9.0, 9.0])))
        # As many digits as tell the doubles apart, or some that are behind these.
        text = repr(number) if rng.randrange(2) else f"{number:.30f}"
        found = number_of(text)
        left += found is None
        assert found in (None, float(np.float32(float(text)))), text
    assert left


@pytest.mark.parametrize(
    "number", ["1e39", "-3.5e38", "1e-40", "1e400", "1e-400", "1e99999999999", "NaN", "Infinity"]
)
def test_a_number_that_float32_does_not_hold_is_left(number: str) -> None:
    assert number_of(number) is None
    taken = take_number_lists(f"[[1,2],[3,{number}],[4]]".encode())
    assert taken is not None
    assert taken[0].decode() == f"[{MARK}0,[3,{number}],{MARK}1]"


@pytest.mark.parametrize(
    "text",
    ["[01]", "[1.]", "[.5]", "[+1]", "[1e]", "[1e+]", "[-]", "[1 2]", "[1,]", "[,1]", "[]", "[1", "[0x1]"],
)
def test_what_is_no_number_or_no_list_of_json_is_left(text: str) -> None:
    assert take_number_lists(text.encode()) is None


@pytest.mark.contract("A list within a string is none.", convicts=["list_within_a_string"])
@pytest.mark.parametrize("text", ['"[1,2]"', r'"\"[1,2]"', r'"\\\"[1,2]"', '"[1,2]', '{"[1]":"[2]"}'])
def test_a_list_within_a_string_is_none(text: str) -> None:
    assert take_number_lists(text.encode()) is None


def test_a_list_behind_a_string_that_ends_with_a_backslash_is_taken() -> None:
    taken = take_number_lists(rb'{"a\\":"b\\\\","c":[1.5, -2]}')
    assert taken is not None
    assert put_back(taken) == {"a\\": "b\\\\", "c": [1.5, -2.0]}


def test_another_type_than_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        take_number_lists("[1]")  # type: ignore[arg-type]
