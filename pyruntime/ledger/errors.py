"""Errors of a ledger, and the description of damage. Without state: any thread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from pillarbox.kernel import PillarboxError


def printable(text: str) -> str:
    r"""`text` with `\u....` for invisible characters: a terminal would obey some of those.

    What was JSON is the same JSON after that.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


class LedgerError(PillarboxError):
    """Error of a ledger that cannot be written or read as requested.

        >>> from pathlib import Path
        >>> from pillarbox import Ledger, async_map
        >>> from pillarbox.ledger import LedgerError
        >>> async def call(row):
        ...     return object()
        >>> try:
        ...     list(async_map([1], call, ledger=Ledger("objects", uid="call-v1", run="one")))
        ... except Exception as error:
        ...     print(isinstance(error.__cause__ or error, LedgerError))
        True

    The message names the place and the remedy.
    """


class LedgerFullError(LedgerError):
    """There is no room for a record. What was acknowledged before stays readable."""


class LedgerBusyError(LedgerError):
    """Another process has held a lock for longer than one waits."""


class LedgerHeldError(LedgerError):
    """Another job works on the run; the message says which, and since when."""


class LedgerClosedError(LedgerError):
    """The writer was closed, or has failed; the message says with what."""


class LedgerFormatError(LedgerError):
    """The ledger was written by a version of Pillarbox that this one cannot read."""


class LedgerValueError(LedgerError, TypeError):
    """Error of a value of a type that a ledger does not store, or that has no fingerprint.

        >>> from pillarbox.ledger import KeyMaker
        >>> from pillarbox.ledger.errors import LedgerValueError
        >>> try:
        ...     KeyMaker()(object())
        ... except LedgerValueError as error:
        ...     print(type(error).__mro__[1].__name__)
        LedgerError

    A `TypeError`, so that the row fails as with any other wrong type.
    """


class LedgerConflictError(LedgerError):
    """Two rows of one execution have one key and different inputs, so that it names neither."""

    is_own = True

    def __init__(self, key: bytes, input: bytes, other: bytes, message: str = "") -> None:
        super().__init__(
            message or f"two rows of this execution have the key {key.hex()} and different inputs"
        )
        self.key = key
        """The key of both, as a `RowIdentity` makes it."""
        self.input = input
        """The fingerprint of the row's input."""
        self.other = other
        """That of the other row."""

    def with_columns(self, columns: Sequence[str], one: str = "") -> LedgerConflictError:
        """Return the same error in words: with the columns in which the rows differ, and one of these."""
        return LedgerConflictError(
            self.key,
            self.input,
            self.other,
            f"two rows of this run have one key, and differ in {', '.join(columns) or 'its version'}{one}. "
            "A key has to name one row: give key columns that do, or, if the answer does not depend on what "
            "differs, name the columns that count, with Ledger(..., inputs=[...])",
        )

    def __reduce__(self) -> tuple[type[LedgerConflictError], tuple[bytes, bytes, bytes, str]]:
        return type(self), (self.key, self.input, self.other, str(self))


class LedgerWarning(UserWarning):
    """Warning of damage in a ledger. Damaged records are skipped; their calls are made again.

        >>> import warnings
        >>> from pillarbox.ledger.errors import LedgerWarning
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", LedgerWarning)  # a job that must not skip any

    The text names the file.
    """


class Damage(NamedTuple):
    """A part of a segment that is not trusted."""

    segment: str
    """The file's name."""
    offset: int
    """Its first byte."""
    length: int
    """Bytes."""
    reason: str
    """In words."""
    is_tail: bool
    """True if nothing whole follows: so looks what a kill leaves behind, and what is being written."""

    def __str__(self) -> str:
        return f"{printable(self.segment)}: {self.length} bytes from byte {self.offset}: {self.reason}"
