"""Tells a client of vectors how long those are that a ledger has kept: a column has vectors of one length.

Any thread; reads the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from pillarbox.ledger.errors import LedgerError

if TYPE_CHECKING:
    from pillarbox.aio.ledger_session import LedgerSession
    from pillarbox.ledger.reader import LedgerReader

MAX_FRAMES = 4
MAX_RECORDS = 32
"""Frames, and records of each, in which a kept vector is looked for."""


def expect_kept(fn: object, session: LedgerSession | None) -> None:
    """Have `fn`, if it is a client that knows `expect_length`, give vectors as long as those kept before."""
    expect = getattr(fn, "expect_length", None)
    if expect is None or session is None:
        return
    # Merged meanwhile: then each result that is found was kept under the same rule.
    with suppress(LedgerError):
        length = kept_length(session.reader)
        if length is not None:
            expect(length)


def kept_length(reader: LedgerReader) -> int | None:
    """The length of a vector that was kept; None where there is none among the first."""
    for rows, places in islice(reader.frames(), MAX_FRAMES):
        if rows.vectors is not None:
            return int(rows.vectors.shape[1])
        for place in places[:MAX_RECORDS]:
            record = rows.record(place)
            length = None if record.is_error else _length_of(record.value)
            if length is not None:
                return length
    return None


def _length_of(value: Any) -> int | None:
    """The length of a vector, or of the first one in a row of columns."""
    if getattr(value, "ndim", 0) == 1 or (isinstance(value, list) and _are_numbers(value)):
        return len(value)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    return next((length for part in parts if (length := _length_of(part)) is not None), None)


def _are_numbers(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(each, float) for each in values)
