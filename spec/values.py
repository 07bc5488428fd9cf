"""Reads values as TLC prints them: numbers, booleans, strings, sequences, sets, records and functions.

Used by `spec.graph`. A sequence becomes a tuple, a set a frozenset, a record or a function a dict, a model
value a string. Plain functions: any thread.
"""

from __future__ import annotations

import re
from typing import Any

TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|-?\d+|<<|>>|\|->|:>|@@|[\[\](){},]|\w+)')
WORDS = {"TRUE": True, "FALSE": False}


def parse(text: str) -> Any:
    """The value that `text` is. ValueError if it is none, or more than one."""
    reader = _Reader(text)
    value = reader.value()
    if reader.token is not None:
        raise ValueError(f"after a value comes {reader.token!r} in {text!r}")
    return value


def parse_state(label: str) -> dict[str, Any]:
    r"""The variables of a state, printed as a conjunction: `/\ x = 1`, one on each line."""
    parts = re.split(r"^/\\ ", label, flags=re.MULTILINE)
    pairs = (part.partition(" = ") for part in parts if part.strip())
    return {name.strip(): parse(value) for name, _, value in pairs}


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.token: str | None = None
        self.go_on()

    def go_on(self) -> None:
        match = TOKEN.match(self.text, self.position)
        if match is None and self.text[self.position :].strip():
            raise ValueError(f"no value of TLA+ at {self.text[self.position :]!r}")
        self.token = match[1] if match else None
        self.position = match.end() if match else len(self.text)

    def take(self, *expected: str) -> str:
        token = self.token
        if token is None or (expected and token not in expected):
            raise ValueError(
                f"expected {' or '.join(expected) or 'a value'}, not {token!r}, in {self.text!r}"
            )
        self.go_on()
        return token

    def listed(self, end: str) -> list[Any]:
        values = []
        while self.token != end:
            values.append(self.value())
            if self.token != end:
                self.take(",")
        self.take(end)
        return values

    def value(self) -> Any:
        token = self.take()
        if token == "<<":
            return tuple(self.listed(">>"))
        if token == "{":
            return frozenset(self.listed("}"))
        if token == "[":
            return self.record()
        if token == "(":
            return self.function()
        if token.startswith('"'):
            return token[1:-1].replace('\\"', '"')
        if token.lstrip("-").isdigit():
            return int(token)
        if token.isidentifier():
            return WORDS.get(token, token)
        raise ValueError(f"no value of TLA+ begins with {token!r}, in {self.text!r}")

    def record(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while self.token != "]":
            name = self.take()
            self.take("|->")
            fields[name] = self.value()
            if self.token != "]":
                self.take(",")
        self.take("]")
        return fields

    def function(self) -> dict[Any, Any]:
        pairs: dict[Any, Any] = {}
        while True:
            argument = self.value()
            self.take(":>")
            pairs[argument] = self.value()
            if self.take("@@", ")") == ")":
                return pairs
