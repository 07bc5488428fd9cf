"""The rows of a task as a ledger knows them: their keys, their inputs, and what contradicts its records.

Made by any thread, then confined to the mailbox thread; `find_conflict` is for that which closes the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from pillarbox.aio.calls import INPUT, KEY, ROW, Call
from pillarbox.aio.errors import shorten
from pillarbox.aio.ledger_scope import StaleAnswers
from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.conflicts import ConflictFinder
from pillarbox.ledger.errors import LedgerConflictError
from pillarbox.ledger.format import Origin
from pillarbox.ledger.keys import ChainedIdentity, ContentIdentity, RowIdentity
from pillarbox.ledger.reader import LedgerReader
from pillarbox.redaction import Redact


class LedgerRows:
    """Gives rows their keys and inputs.

    identify: key and input of a row; a `RowIdentity` with a key has rows with equal ones share their call.
    execution: that of which the task is one. alone: the execution has no other tasks.
    """

    __slots__ = (
        *("execution", "first", "is_behind", "shares", "stale"),
        *("_conflicts", "_identify", "_ledger", "_of_rows", "_redact"),
    )

    def __init__(
        self,
        ledger: Ledger,
        identify: Callable[[Any], tuple[bytes, bytes]],
        *,
        execution: bytes,
        alone: bool,
        redact: Redact,
    ) -> None:
        self._ledger = ledger
        self._identify = identify
        self._redact = redact
        self.execution = execution
        self.is_behind = isinstance(identify, ChainedIdentity)
        """Another function of a chain gave the rows."""
        self._of_rows = identify.of_rows if isinstance(identify, RowIdentity) and not self.is_behind else None
        self.shares = isinstance(identify, RowIdentity) and identify.shares
        """Rows with equal keys share a call; rows that are known by their content have no equals."""
        self._conflicts: ConflictFinder | None = None
        if isinstance(identify, RowIdentity) and identify.shares:
            # Where the key says all, no two rows differ that have one.
            says_all = self.is_behind or isinstance(identify, ContentIdentity) or not identify.has_key
            self._conflicts = None if says_all else ConflictFinder(execution, alone)
        self.stale = StaleAnswers()
        self.first: bytes | None = None
        """The key of the first row that was looked up."""

    def identify(self, call: Call) -> None:
        """Give a row its key and input.

        Raises LedgerValueError for a row that has no fingerprint, KeyError for one without a column.
        """
        call.key, call.input = self._identify(call if self.is_behind else call.row)

    def identify_all(self, calls: Sequence[Call]) -> tuple[list[bytes], list[bytes]]:
        """Give rows their keys and inputs, and return them. Raises as `identify` does."""
        if self._of_rows is not None:
            keys, inputs = self._of_rows(ROW.of(calls))
            KEY.put_each(calls, keys)
            INPUT.put_each(calls, inputs)
            return keys, inputs
        identify, is_behind = self._identify, self.is_behind
        keys, inputs = [], []
        for call in calls:
            call.key, call.input = key, input = identify(call if is_behind else call.row)
            keys.append(key)
            inputs.append(input)
        return keys, inputs

    def rekey(self, call: Call, key: bytes) -> None:
        """Know a row by another key from now on."""
        call.key = key

    def note(self, keys: Sequence[bytes], inputs: Sequence[bytes], *, is_old: bool = False) -> None:
        """Note rows that are called, or whose answer was found; is_old: that of an earlier execution."""
        if self._conflicts is not None:
            self._conflicts.add_all(keys, inputs, is_old=is_old)

    def count_stale(self, call: Call, origin: Origin) -> None:
        """Count a row whose key has an answer to another question."""
        if origin.version != self._ledger.kept_version:
            self.stale.versions += 1
            return
        self.stale.inputs += 1
        self.stale.columns.update(self._differing(origin.input, call.input, self._ledger.inputs is not None))

    def _differing(self, kept: bytes, input: bytes, some: bool = False) -> list[str]:
        return self._identify.differing(kept, input, some) if isinstance(self._identify, RowIdentity) else []

    def conflict(self, call: Call, other: bytes) -> LedgerConflictError:
        """The error of a row whose key another one of its execution has, with the input `other`."""
        redact = self._redact
        one = "" if redact.rows else f"; one is {shorten(call.row, redact=redact)}"
        conflict = LedgerConflictError(call.key, call.input, other)
        return conflict.with_columns(self._differing(other, call.input), one)

    def find_conflict(self, reader: LedgerReader, scope: Scope) -> BaseException | None:
        """Look at the end for rows of the execution that have one key and different inputs. Blocks.

        Returns the error of these, or that for which it cannot be found out.
        """
        if self._conflicts is None:
            return None
        try:
            with closing(self._ledger.folder(scope)) as folder:
                self._conflicts.check(reader, folder)
        except LedgerConflictError as error:
            return error.with_columns(self._differing(error.other, error.input))
        except (OSError, LedgerError) as error:
            return error
        return None
