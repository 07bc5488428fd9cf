"""Types of Spark from DDL, where no session is there that could be asked.

Spark's own parser runs in its JVM, or at the other end of Spark Connect. Pure; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import types as T

from pillarbox.spark.compat import TIME_TYPES

MAX_DEPTH = 100
"""Types in each other, at most."""
_TOKEN = re.compile(
    r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))", re.DOTALL
)
_SIMPLE: dict[str, Callable[[], T.DataType]] = {
    **dict.fromkeys(("boolean",), T.BooleanType),
    **dict.fromkeys(("tinyint", "byte"), T.ByteType),
    **dict.fromkeys(("smallint", "short"), T.ShortType),
    **dict.fromkeys(("int", "integer"), T.IntegerType),
    **dict.fromkeys(("bigint", "long"), T.LongType),
    **dict.fromkeys(("float", "real"), T.FloatType),
    **dict.fromkeys(("double",), T.DoubleType),
    **dict.fromkeys(("string",), T.StringType),
    **dict.fromkeys(("binary",), T.BinaryType),
    **dict.fromkeys(("date",), T.DateType),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), T.TimestampType),
    **dict.fromkeys(("timestamp_ntz",), T.TimestampNTZType),
    **dict.fromkeys(("void",), T.NullType),
    **({"time": TIME_TYPES[0]} if TIME_TYPES else {}),
}
DEFAULT_DECIMAL = 10, 0
"""Digits and those behind the point of a `decimal` that names none."""


class _Token(NamedTuple):
    """A word of a DDL. kind: the group of `_TOKEN`; text: in lower case, if it is plain; given: as it is."""

    kind: int
    text: str
    given: str


class _Parser:
    """Reads the tokens of a DDL from the front. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self._tokens: list[_Token] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"unexpected {text[at:].strip()[:20]!r}")
            kind = match.lastindex or 0
            given = match[kind]
            plain = given[1:-1].replace("``", "`") if kind == 1 else given
            self._tokens.append(_Token(kind, plain if kind == 1 else plain.lower(), plain))
            at = match.end()
        self._at = 0

    def whole(self) -> T.DataType:
        """The type that is all of the text: one type, or the columns of a row."""
        before = self._at
        try:
            found = self._type(0)
            if self._at == len(self._tokens):
                return found
        except ValueError as error:
            why = error
        else:
            why = ValueError(f"unexpected {self._peek().given!r}")
        self._at = before
        try:
            row = self._fields("", 0)
        except ValueError:
            # Of two words the first is a column; of one it was to be a type.
            if len(self._tokens) < 2:
                raise why from None
            raise
        if self._at < len(self._tokens):
            raise ValueError(f"unexpected {self._peek().given!r}")
        return row

    def _peek(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _Token(0, "", "the end")

    def _next(self) -> _Token:
        token = self._peek()
        if not token.kind:
            raise ValueError("it ends too early")
        self._at += 1
        return token

    def _take(self, text: str, kind: int) -> bool:
        token = self._peek()
        if token.kind == kind and token.text == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text, 4):
            raise ValueError(f"{text!r} is expected, not {self._peek().given!r}")

    def _type(self, depth: int) -> T.DataType:
        if depth > MAX_DEPTH:
            raise ValueError(f"types may be {MAX_DEPTH} deep in each other")
        token = self._next()
        name = token.text if token.kind == 3 else ""
        if name == "array":
            self._expect("<")
            element = self._type(depth + 1)
            self._expect(">")
            return T.ArrayType(element)
        if name == "map":
            self._expect("<")
            key = self._type(depth + 1)
            self._expect(",")
            value = self._type(depth + 1)
            self._expect(">")
            return T.MapType(key, value)
        if name == "struct":
            self._expect("<")
            row = self._fields(">", depth + 1)
            self._expect(">")
            return row
        if name in ("decimal", "dec", "numeric"):
            return T.DecimalType(*self._numbers() or DEFAULT_DECIMAL)
        if name == "interval" and self._take("day", 3):
            return self._day_time()
        if name == "time" and "time" in _SIMPLE:
            self._numbers()
        if name not in _SIMPLE:
            raise ValueError(f"{token.given!r} is not a type")
        return _SIMPLE[name]()

    def _day_time(self) -> T.DataType:
        if self._take("to", 3) and not self._take("second", 3):
            raise ValueError("an interval is DAY TO SECOND")
        return T.DayTimeIntervalType(0, 3)

    def _numbers(self) -> list[int]:
        """The numbers in parentheses; none where there are no parentheses."""
        found: list[int] = []
        if self._take("(", 4):
            while not self._take(")", 4):
                token = self._next()
                if token.kind != 3 or not token.text.isdecimal():
                    raise ValueError(f"a number is expected, not {token.given!r}")
                found.append(int(token.text))
                if self._peek().text != ")":
                    self._expect(",")
        return found

    def _fields(self, end: str, depth: int) -> T.StructType:
        """The columns up to `end`."""
        fields: list[T.StructField] = []
        while self._peek().kind and not (end and self._peek().text == end):
            if fields:
                self._expect(",")
            name = self._next()
            if name.kind not in (1, 3):
                raise ValueError(f"the name of a column is expected, not {name.given!r}")
            self._take(":", 4)
            kind = self._type(depth)
            nullable, metadata = True, None
            if self._take("not", 3):
                if not self._take("null", 3):
                    raise ValueError(f"NOT NULL is expected, not {self._peek().given!r}")
                nullable = False
            if self._take("comment", 3):
                comment = self._next()
                if comment.kind != 2:
                    raise ValueError(f"a text is expected, not {comment.given!r}")
                metadata = {"comment": comment.given[1:-1]}
            fields.append(T.StructField(name.given, kind, nullable, metadata))
        return T.StructType(fields)


def parsed(text: str) -> T.DataType:
    """Return the type that a DDL names, or the struct of the columns that it lists. Raises ValueError."""
    return _Parser(text).whole()
