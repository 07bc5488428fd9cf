"""Looks rows up in a ledger, by batch: what they have there is their result, and no call is made.

Confined to the mailbox thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pillarbox.aio.calls import INPUT, KEY, LOOKED, Call
from pillarbox.aio.errors import ErrorInfo, Failed
from pillarbox.aio.function import value_of
from pillarbox.aio.in_flight import WAITING, CallsInFlight
from pillarbox.aio.ledger_rows import LedgerRows
from pillarbox.ledger.format import Origin, Record, Rows
from pillarbox.ledger.keys import fingerprint
from pillarbox.ledger.reader import FoundVector, LedgerReader
from pillarbox.redaction import redacted

POLL_INTERVAL_S = 0.2
"""Seconds between two looks for what other tasks, or another attempt of this one, have called."""


class MisfitError(Exception):
    """A kept result that does not fit what it is made into by now."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept


class LedgerLookup:
    """Finds the results of rows.

    in_flight: the calls that rows with an equal key join; None where none do. convert, rows_of: see
    `ResultConverter`; None for neither. is_local: it is cheap to see what other processes have written.
    at_first_miss: is called before the first row that is to be called; returns True if the row is to be
    looked up once more.
    """

    __slots__ = (
        *("hits", "reader", "_at_first_miss", "_blocks", "_convert", "_has_missed", "_in_flight"),
        *("_is_local", "_refreshed_at", "_rows", "_rows_of", "_seen"),
    )

    def __init__(
        self,
        reader: LedgerReader,
        rows: LedgerRows,
        in_flight: CallsInFlight | None,
        *,
        convert: Callable[[Any], Any] | None,
        rows_of: Callable[[Any], list[Any] | None] | None,
        is_local: bool,
        at_first_miss: Callable[[], bool],
    ) -> None:
        self.reader = reader
        self._rows = rows
        self._in_flight = in_flight
        self._convert = convert
        self._rows_of = rows_of
        self._is_local = is_local
        self._at_first_miss = at_first_miss
        self._has_missed = False
        self.hits = 0
        """Results that were found."""
        self._refreshed_at = 0.0
        # The results of frames of vectors, as long as the reader has these at hand.
        self._blocks: WeakKeyDictionary[Rows, list[Any] | None] = WeakKeyDictionary()
        self._seen = len(reader)

    # -- rows come ------------------------------------------------------------------------------

    def look_up(
        self, calls: Sequence[Call], *, are_known: bool = False
    ) -> list[tuple[Call, tuple[Any] | object]]:
        """Look up rows that come; returns those that need not be called, with their outcomes.

        That is a result in a tuple, or `WAITING` where a call of a row with this key and input is in flight,
        whose result the row will get. are_known: the rows have their keys and inputs.
        Raises LedgerConflictError for a row whose key another one of this execution has, with another input;
        LedgerValueError for a row that has no fingerprint, KeyError for one without a column, OSError.
        """
        if not calls:
            return []
        rows = self._rows
        if are_known:
            keys, inputs = KEY.of(calls), INPUT.of(calls)
        else:
            keys, inputs = rows.identify_all(calls)
        if rows.first is None:
            rows.first = keys[0]
        in_flight: dict[Any, Call] = {} if self._in_flight is None else self._in_flight.by_key
        # Before the look: what comes in meanwhile, by the thread of the writer, is to be looked at once more.
        scans = self.reader.scans
        if self._has_missed and self._are_new(keys, in_flight):
            LOOKED.put(calls, scans)
            if self._in_flight is not None:
                in_flight.update(zip(keys, calls, strict=True))
            rows.note(keys, inputs)
            return []
        done: list[tuple[Call, tuple[Any] | object]] = []
        is_in_order = self._rows_of is not None
        each: list[tuple[Rows, int] | None] = []
        old_keys: list[bytes] = []
        old_inputs: list[bytes] = []
        first = place = 0
        while place < len(calls):
            run = self._find_run(keys[place:], inputs[place:], in_flight) if is_in_order else None
            if run is not None:
                end = place + len(run)
                done += zip(calls[place:end], [(result,) for result in run], strict=True)
                old_keys += keys[place:end]
                old_inputs += inputs[place:end]
                place = end
                continue
            # Rows in another order are not looked for as runs again and again.
            is_in_order = False
            if not each:
                # spec: Ledger!Look
                first = place
                each = self.reader.search_each(keys[place:], inputs[place:], rows.execution)
            found: tuple[Any] | object | None = None
            located = each[place - first]
            if located is not None and keys[place] not in in_flight:
                found = self._value_of(*located)
            if found is None:
                found = self._look_up_one(calls[place])
            else:
                old_keys.append(keys[place])
                old_inputs.append(inputs[place])
            if found is not None:
                done.append((calls[place], found))
            place += 1
        self.hits += len(old_keys)
        if old_keys:
            rows.note(old_keys, old_inputs, is_old=True)
        return done

    def _are_new(self, keys: list[bytes], in_flight: dict[Any, Call]) -> bool:
        """Return True if no key has a record or a call in flight, as in most of a first run."""
        if len(set(keys)) < len(keys) or not in_flight.keys().isdisjoint(keys):
            return False
        # spec: Ledger!Look
        return not self.reader.may_have_any(keys)

    def _find_run(
        self, keys: list[bytes], inputs: list[bytes], in_flight: dict[Any, Call]
    ) -> list[Any] | None:
        """The results of the first rows of these that follow one another in a frame of vectors."""
        # spec: Ledger!Look
        run = self.reader.search_run(keys, inputs, self._rows.execution)
        if run is None:
            return None
        rows, begin, end = run
        block = self._block_of(rows)
        if block is None or not in_flight.keys().isdisjoint(keys[: end - begin]):
            return None
        return block[begin:end]

    def _value_of(self, rows: Rows, row: int) -> tuple[Any] | None:
        """The value of a record, in a tuple; None if it does not fit any more."""
        value = rows.value(row)
        if self._convert is None:
            return (value,)
        try:
            return (value_of(self._convert(value)),)
        except Exception:
            # It is looked up alone then, and `find` counts it among the misfits.
            return None

    def _look_up_one(self, call: Call) -> tuple[Any] | object | None:
        """Look up a row of which one look does not say all; None where it is to be called."""
        key = call.key
        if self._joins(call):
            return WAITING
        scans = self.reader.scans
        found: tuple[Any] | Origin | None = self.find(call)
        if type(found) is not tuple and not self._has_missed:
            self._has_missed = True
            if self._at_first_miss():
                self._rows.rekey(call, key)
                scans = self.reader.scans
                found = self.find(call)
        call.looked = scans
        if type(found) is tuple:
            return (value_of(found[0]),)
        if call.key is not key:
            self._rows.stale.misfits += 1
            if self._joins(call):
                return WAITING
        if isinstance(found, Origin) and found.execution != self._rows.execution:
            self._rows.count_stale(call, found)
        if self._in_flight is not None:
            self._in_flight.by_key.setdefault(call.key, call)
        self._rows.note((call.key,), (call.input,))
        return None

    def _joins(self, call: Call) -> bool:
        """Return True if the row waits from now on for the call of another one with its key and input."""
        if self._in_flight is None or (before := self._in_flight.by_key.get(call.key)) is None:
            return False
        if before.input != call.input:
            if not self._rows.is_behind:
                raise self._rows.conflict(call, before.input)
            return False
        self._in_flight.join(call, before)
        return True

    # -- rows wait ------------------------------------------------------------------------------

    def look_again(self, call: Call) -> tuple[Any] | None:
        """The result, in a tuple, that another attempt or task has kept for a row that waits; or None."""
        if call.attempt and self._is_local and time.monotonic() - self._refreshed_at >= POLL_INTERVAL_S:
            # Dear, and worth it before a call that is paid for again.
            self._refreshed_at = time.monotonic()
            self.reader.refresh()
        call.looked = self.reader.scans
        key = call.key
        found = self.find(call)
        if self._in_flight is not None and call.key is not key:
            # What another process has kept does not fit.
            self._in_flight.move(call, key, call.key)
        return None if found is None or isinstance(found, Origin) else found

    def has_news(self) -> bool:
        """Return True if records were added since the last time that this was asked."""
        seen, self._seen = self._seen, len(self.reader)
        return seen != self._seen

    # -- one record -----------------------------------------------------------------------------

    def find(self, call: Call) -> tuple[Any] | Origin | None:
        """A result in a tuple; what else there is under the row's key; None for nothing."""
        # spec: Ledger!Look
        rows, in_blocks = self._rows, self._rows_of is not None
        record = self.reader.search(call.key, call.input, rows.execution, in_blocks=in_blocks)
        while type(record) is Record or type(record) is FoundVector:
            try:
                result = self.result_of(record)
            except MisfitError as misfit:
                # What was given in its place stands under a key of its own, which whoever meets the misfit
                # makes of it.
                rows.rekey(call, fingerprint([call.key, misfit.kept], "misfit"))
                record = self.reader.search(call.key, call.input, rows.execution, in_blocks=in_blocks)
                continue
            self.hits += 1
            rows.note((call.key,), (call.input,), is_old=record.execution != rows.execution)
            return (result,)
        if type(record) is Origin:
            if record.execution == rows.execution and not rows.is_behind:
                # spec: Ledger!Refuse
                raise rows.conflict(call, record.input)
            return record
        return None

    def result_of(self, record: Record | FoundVector) -> Any:
        """Make the result of a record, in the form in which it leaves. Raises MisfitError."""
        if isinstance(record, FoundVector):
            block = self._block_of(record.rows)
            if block is not None:
                return block[record.row]
            record = record.rows.record(record.row)
        if record.is_error:
            info = ErrorInfo(**{name: record.value.get(name) for name in ErrorInfo._fields})
            # An earlier version may have written it.
            return Failed(info._replace(message=redacted(info.message or "")))
        if self._convert is None:
            return record.value
        try:
            return self._convert(record.value)
        except Exception as error:
            raise MisfitError(record.value) from error

    def _block_of(self, rows: Rows) -> list[Any] | None:
        """The results of a frame of vectors, in the form in which they leave; None where these have none."""
        if rows not in self._blocks:
            assert self._rows_of is not None
            # Once for all of them, without a copy.
            self._blocks[rows] = self._rows_of(rows.vectors)
        return self._blocks[rows]
