"""A block of entries whose values are vectors of one form: what a call for many rows gave, kept as one.

Arrow's message of such a block is put together here, around the memory of the vectors. Pure: any thread.
"""

# Why not by Arrow: it copies the vectors into its message, and makes some thirty objects for the columns of a
# block, between which it lets go of the GIL, which the thread of the calls wants as well. All that differs
# between the messages of blocks of one form are the bytes of seven columns. So Arrow writes one message of
# each form, from which the rest of it is cut out, and a second one, which must be what is put together here:
# another version of Arrow could write in another way.

from __future__ import annotations

import functools
import secrets
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.format import VALUE, Message, Row, message_of, to_batch
from pillarbox.ledger.keys import KEY_BYTES

MAX_FORMS = 256
"""Forms of blocks that are held, of some 10 kB each: the last block of a task has fewer rows than others."""

MIN_FOUND_BYTES = 64
"""Bytes of vectors that are found again in a message: fewer random ones might be in it by chance."""


@dataclass(frozen=True)
class RowBlock:
    """Entries whose values are vectors of one form, one after another in memory.

    text: the JSON of each. content: their blobs, of one length. latency, at: of all of them.
    """

    keys: Sequence[bytes]
    inputs: Sequence[bytes]
    text: str
    content: memoryview
    attempts: Sequence[int]
    latency: float
    costs: Sequence[float]
    at: int

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def width(self) -> int:
        """Bytes of a vector."""
        return len(self.content) // len(self.keys)

    def parts(self, rows: int) -> Iterator[RowBlock]:
        """Blocks of at most so many of these entries, without a copy of their values."""
        width = self.width
        for start in range(0, len(self), rows):
            some = slice(start, start + rows)
            yield RowBlock(
                self.keys[some],
                self.inputs[some],
                self.text,
                self.content[start * width : (start + rows) * width],
                self.attempts[some],
                self.latency,
                self.costs[some],
                self.at,
            )

    def entries(self) -> list[Row]:
        """The entries, one by one."""
        width = self.width
        return [
            (
                *(key, VALUE, self.text, [], [bytes(self.content[place * width :][:width])], attempts),
                *(self.latency, cost, self.at, input),
            )
            for place, (key, input, attempts, cost) in enumerate(
                zip(self.keys, self.inputs, self.attempts, self.costs, strict=True)
            )
        ]

    def message(self, version: str, execution: bytes) -> Message:
        """The message of these entries, byte for byte what Arrow writes of `to_batch` of them.

        Raises LedgerError where this Arrow writes batches in an unknown way.
        """
        input_bytes = set(map(len, self.inputs))
        if len(input_bytes) > 1 or len(self.content) < MIN_FOUND_BYTES:
            return message_of(to_batch(self.entries(), version, execution))
        form = _Form(len(self), self.width, input_bytes.pop(), self.text, version, execution)
        fixed, columns = _fixed_parts(form), _columns(self)
        before = b"".join((fixed[0], columns[0], fixed[1]))
        after = b"".join(chain(*zip(fixed[2:], columns[2:], strict=False), fixed[-1:]))
        return Message((before, self.content, after), len(self), columns[0], len(fixed[0]))


class _Form(NamedTuple):
    """All that messages of blocks have in common where only their columns differ."""

    rows: int
    width: int
    input_bytes: int
    text: str
    version: str
    execution: bytes


def _columns(block: RowBlock) -> list[Any]:
    """The bytes of the columns of a block that are not always the same, in the order of the schema."""
    rows = len(block)
    return [
        b"".join(block.keys),
        block.content,
        array("i", block.attempts).tobytes(),
        array("d", [block.latency]).tobytes() * rows,
        array("d", block.costs).tobytes(),
        array("q", [block.at]).tobytes() * rows,
        b"".join(block.inputs),
    ]


@functools.lru_cache(MAX_FORMS)
def _fixed_parts(form: _Form) -> tuple[bytes, ...]:
    """The bytes of a message of this form that are around its `_columns`."""
    block, message = _sample(form)
    fixed, begin = [], 0
    for column in _columns(block):
        at = message.find(column, begin)
        fixed.append(message[begin:at])
        begin = at + len(column)
    fixed.append(message[begin:])
    block, message = _sample(form)
    if b"".join(chain(*zip(fixed, _columns(block), strict=False), fixed[-1:])) != message:
        raise LedgerError("this pyarrow writes a batch in an unknown way")
    return tuple(fixed)


def _sample(form: _Form) -> tuple[RowBlock, bytes]:
    """A block of this form, with random bytes for all that may differ, and its message."""
    rows, chance = form.rows, secrets.token_bytes
    block = RowBlock(
        [chance(KEY_BYTES) for _ in range(rows)],
        [chance(form.input_bytes) for _ in range(rows)],
        form.text,
        memoryview(chance(rows * form.width)),
        [secrets.randbits(31) for _ in range(rows)],
        float(secrets.randbits(52)),
        [float(secrets.randbits(52)) for _ in range(rows)],
        secrets.randbits(62),
    )
    return block, bytes(message_of(to_batch(block.entries(), form.version, form.execution)).parts[0])
