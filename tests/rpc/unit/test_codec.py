"""Messages as JSON: what is written is read as it was, and what is not a message is refused by its field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from pillarbox.aio.limits.rate import Positive
from pillarbox.rpc.codec import Codec
from pillarbox.rpc.connection import encode
from pillarbox.validate import Amount, Count


class Pair(NamedTuple):
    left: Count
    right: float


@dataclass(frozen=True)
class Everything:
    name: str
    is_set: bool
    number: int
    times: Mapping[str, float | None]
    pairs: tuple[Pair, ...]
    two: tuple[str, Amount]
    maybe: Positive | None


class Nothing(NamedTuple):
    pass


class Set(NamedTuple):
    parts: set[int]


CODEC = Codec(Everything, Pair, Nothing)
MESSAGE = Everything(
    "n",
    True,
    -3,
    {"a": -2.5, "b": None},
    (Pair(0, 1e300), Pair(2, 0.5)),
    ("t", 0.25),
    None,
)


def sent(message: Any) -> Any:
    return json.loads(encode(CODEC.to_json(message)))


@pytest.mark.parametrize("message", [MESSAGE, Pair(1, 2.0), Nothing()])
def test_a_message_is_read_as_it_was_written(message: Any) -> None:
    assert CODEC.from_json(sent(message)) == message


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (1, 7, "Everything.name=7: must be of type str"),
        (2, 1, "Everything.is_set=1: must be of type bool"),
        (3, True, "Everything.number=True: must be of type int"),
        (3, 1.0, "Everything.number=1.0"),
        (4, [], r"Everything.times=\[\]: must be an object"),
        (4, {"a": "x"}, "Everything.times='x': must be a finite number"),
        (4, {"a": math.nan}, "Everything.times=nan: must be a finite number"),
        (4, {"a": math.inf}, "Everything.times=inf: must be a finite number"),
        (4, {"a": 10**400}, "Everything.times=10+: must be a finite number"),
        (5, [[-1, 0]], "Pair.left=-1: must be from 0 on"),
        (5, [[1]], "must be a list of 2 fields"),
        (5, 1, "Everything.pairs=1: must be a list"),
        (6, ["t"], "must be a list of 2"),
        (6, ["t", "inf"], "Everything.two='inf': must be a finite number"),
        (7, 0, "Everything.maybe=0: must be more than 0"),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_name(at: int, value: Any, text: str) -> None:
    written = sent(MESSAGE)
    written[at] = value
    with pytest.raises(ValueError, match=text):
        CODEC.from_json(written)


@pytest.mark.parametrize(
    "written", [None, [], {}, ["Other"], [["Pair"]], ["Pair", 1], ["Nothing", 1], "Pair"]
)
def test_what_is_not_a_message_is_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="not one of the messages Everything|must be a list of"):
        CODEC.from_json(written)


def test_a_number_that_is_not_finite_is_not_sent() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        encode(CODEC.to_json(Everything("n", True, 1, {}, (), ("t", math.inf), None)))


def test_a_field_that_cannot_be_written_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"Set\.parts: a field of type set\[int\] cannot be written"):
        Codec(Set)
