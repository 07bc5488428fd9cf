"""Finds finished calls again: scans a scope's segments, and reads what is asked for, checked and durable.

Starting costs reading heads and keys; results are read when they are asked for. Thread-safe.
"""

from __future__ import annotations

import functools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

from pillarbox.ledger.errors import Damage, LedgerError
from pillarbox.ledger.folders import Folder
from pillarbox.ledger.format import ERROR, Frame, Origin, Record, Rows, add_time, is_of, owner_of
from pillarbox.ledger.frame_store import FrameStore
from pillarbox.ledger.keys import Scope, is_answer
from pillarbox.ledger.local_folder import SEGMENT_NAME, LocalFolder, Mark
from pillarbox.ledger.segments import DamageLog, Segments

Method = TypeVar("Method", bound=Callable[..., Any])
MAX_SCAN_TRIES = 10


class FoundVector(NamedTuple):
    """The record of a row whose frame has vectors only: row `row` of `rows.vectors`."""

    rows: Rows
    row: int

    @property
    def execution(self) -> bytes:
        """The execution that kept it."""
        return self.rows.execution(self.row)


def undisturbed(method: Method) -> Method:
    """Have a method of `LedgerReader` run under the mutex, and again where segments were merged meanwhile."""

    @functools.wraps(method)
    def call(reader: LedgerReader, *arguments: object, **named: object) -> Any:
        with reader._mutex:
            for _ in range(MAX_SCAN_TRIES):
                try:
                    return method(reader, *arguments, **named)
                except FileNotFoundError:
                    # What it became has the same records.
                    reader._forget()
                    reader.refresh()
            return method(reader, *arguments, **named)

    return cast("Method", call)


class LedgerReader:
    """The finished calls of one scope. Any thread.

    folder: that of `scope`. accepts_errors: whether the error of a row that failed for good is its result.
    version: of the function, in the form in which a record has it; others are not used. some_inputs: whether
    the ledger names inputs. only: the segments that are read, with the bytes of each; None for all. since:
    microseconds since 1970; what is older is not a record for `get` and the like. newest: of several results
    of a key the newest one counts in `frames`, as in a cache, where those before it were too old for a job;
    else the first one.

    Damage is skipped, kept in `damage`, and said with a `LedgerWarning`, except at the end of a segment,
    where a kill leaves it as a matter of course.
    """

    def __init__(
        self,
        folder: Folder,
        scope: Scope,
        *,
        accepts_errors: bool,
        version: str,
        some_inputs: bool,
        only: Mapping[str, int] | None = None,
        since: int = 0,
        newest: bool = False,
    ) -> None:
        self._folder = folder
        self._only = only
        self._since = since
        self._newest = newest
        self._owner = owner_of(scope.about)
        self.accepts_errors = accepts_errors
        self.version = version
        self._some_inputs = some_inputs
        self._mutex = threading.RLock()
        self._mark: Mark | None = None
        self._mark_unlocked: Mark | None = None
        self._forgotten = 0
        self.scans = 0
        """Looks that have found something which was not written through this reader; never goes back."""
        self._damage = DamageLog(folder.path)
        self._forget()
        self.refresh()

    def __len__(self) -> int:
        """Records found so far, of two with the same key both."""
        return self._store.index.count

    @property
    def damage(self) -> list[Damage]:
        """The parts that are not trusted, in the order they were met, but for the ends of open segments."""
        with self._mutex:
            return [*self._damage.found, *self._segments.open_tails()]

    def refresh(self) -> None:
        """Look what others have written since. Any thread.

        Raises OSError if the folder cannot be read.
        """
        # spec: Ledger!Start, Ledger!Look
        with self._mutex:
            for _ in range(MAX_SCAN_TRIES):
                sizes = {name: size for name, size, _ in self._folder.segments()}
                if self._only is not None:
                    sizes = {name: self._only[name] for name in sizes if name in self._only}
                if self._segments.has_lost(sizes):
                    # Merged in the meantime, and what it became has the same records; or expired.
                    self._forget()
                changed = [each for each in sizes.items() if self._segments.has_changed(*each)]
                with suppress(FileNotFoundError):
                    for name, size in changed:
                        self._scan(name, size)
                    return
                # Merged while it was read: look for what it became.

    def refresh_by_log(self) -> None:
        """Look what others have committed since, as `refresh` does, at the segments that have changed only.

        Whatever was committed before this began is found. Any thread, of a ledger in a local folder. Raises
        OSError.
        """
        # spec: Ledger!Look
        assert isinstance(self._folder, LocalFolder)
        with self._mutex:
            names, mark = self._folder.committed_by_now(self._mark_unlocked)
            self._look_at(names)
            self._mark_unlocked = mark

    @undisturbed
    def get(self, key: bytes, *, errors: bool | None = None, input: bytes | None = None) -> Record | None:
        """The first whole record of a key, on the disk when this returns; None if there is none. Any thread.

        errors: give the record of a row that failed for good; None for what the reader was told.
        input: the fingerprint of the row's input, of which it is to be the answer, by the function's version;
        None for any.
        A result counts before an error: the row was called again.
        Raises LedgerValueError for a value that cannot be read, and OSError.
        """
        found = self._durable(key, input, self.accepts_errors if errors is None else errors)
        return None if found is None else found[0].record(found[1], key)

    def search(
        self, key: bytes, input: bytes, execution: bytes, *, in_blocks: bool = False
    ) -> Record | FoundVector | Origin | None:
        """The record that answers a row, as `get` finds it, or else what another record of its key answers.

        Of several others it is one of `execution`, if there is one. in_blocks: give the place of a record
        whose frame has vectors only. Any thread; raises as `get` does.
        """
        with self._mutex:
            # Most rows of a first run are new: nothing more is to be done for them.
            return self._search(key, input, execution, in_blocks) if self._store.index.find(key) else None

    @undisturbed
    def _search(
        self, key: bytes, input: bytes, execution: bytes, in_blocks: bool
    ) -> Record | FoundVector | Origin | None:
        found = self._durable(key, input, self.accepts_errors)
        if found is not None:
            rows, row = found
            if in_blocks and rows.vectors is not None:
                return FoundVector(rows, row)
            return rows.record(row, key)
        if self._place(key, input) is not None:
            return None
        return self._other(key, input, execution)

    @undisturbed
    def search_run(
        self, keys: Sequence[bytes], inputs: Sequence[bytes], execution: bytes
    ) -> tuple[Rows, int, int] | None:
        """The vectors that answer the first of these rows, as `search` finds them, where they are in a run.

        A run are records of earlier executions than `execution`, which follow one another in a frame that has
        vectors only, as the rows do; no other record has their keys. Returns the frame's rows, and the places
        there at which the run begins and ends; None where there is none. Any thread; raises as `search` does.
        """
        found = self._durable(keys[0], inputs[0], self.accepts_errors)
        if found is None or found[0].vectors is None:
            return None
        rows, begin = found
        count = min(len(keys), rows.count - begin)
        end = begin + count
        some = b"".join(keys[:count])
        if rows.keys(begin, end) != some or rows.inputs[begin:end] != [*inputs[:count]]:
            return None
        if rows.versions.count(self.version) < rows.count or execution in rows.executions:
            return None
        if self._since and any(rows.at(row) < self._since for row in range(begin, end)):
            return None
        if self._store.index.repeated(memoryview(some).cast("Q")[::2].tolist()):
            return None
        return rows, begin, end

    @undisturbed
    def search_each(
        self, keys: Sequence[bytes], inputs: Sequence[bytes], execution: bytes
    ) -> list[tuple[Rows, int] | None]:
        """The records that answer these rows, each as its frame's rows and its row there.

        Only those of which one look says all: the only one of its key, in a frame of values of the reader's
        version that earlier executions than `execution` have kept, and no vectors. None for all others, which
        are for `search`. Any thread; raises as `search` does.
        """
        found: list[tuple[Rows, int] | None] = []
        starts, since = self._store.starts, self._since
        rows: Rows | None = None
        begin = end = 0
        numbers = self._store.index.singles(memoryview(b"".join(keys)).cast("Q")[::2].tolist())
        for key, input, number in zip(keys, inputs, numbers, strict=True):
            if number < 0:
                found.append(None)
                continue
            if not begin <= number < end:
                frame = bisect_right(starts, number) - 1
                begin, rows = starts[frame], self._plain_rows(frame, execution)
                end = begin if rows is None else begin + rows.count
            row = number - begin
            if rows is None or rows.key(row) != key or rows.inputs[row] != input:
                found.append(None)
            else:
                found.append(None if since and rows.at(row) < since else (rows, row))
        return found

    def __contains__(self, key: bytes) -> bool:
        return self.get(key) is not None

    @undisturbed
    def kinds_of(
        self, pairs: Sequence[tuple[bytes, bytes]], execution: bytes
    ) -> tuple[dict[tuple[bytes, bytes], str], dict[tuple[bytes, bytes], Origin]]:
        """The kinds of those keys and inputs that have a record, durable or not yet. Any thread.

        And, of those that have none, which have one of `execution` for another input under their key.
        """
        kinds: dict[tuple[bytes, bytes], str] = {}
        conflicts: dict[tuple[bytes, bytes], Origin] = {}
        for pair in pairs:
            if not self._store.index.find(pair[0]):
                continue
            if (place := self._place(*pair)) is not None:
                kinds[pair] = place[1].kinds[place[2]]
            elif (other := self._other(*pair, execution)) is not None and other.execution == execution:
                conflicts[pair] = other
        return kinds, conflicts

    def may_have_any(self, keys: Sequence[bytes]) -> bool:
        """Return False if none of these keys has a record, durable or not yet. Any thread."""
        with self._mutex:
            return self._store.index.may_have_any(keys)

    def repeated(self, words: Sequence[int]) -> list[int]:
        """The places of those first 8 bytes of keys, as numbers, that several records have. Any thread."""
        with self._mutex:
            return self._store.index.repeated(words)

    @undisturbed
    def origins(self, key: bytes) -> set[Origin]:
        """The questions that a key's records answer, in the reader's version. Any thread. Raises OSError."""
        found = self._of_key(key)
        return {rows.origin(row) for _, rows, row in found if rows.versions[row] == self.version}

    def frames(self) -> Iterator[tuple[Rows, list[int]]]:
        """All whole frames, and which of their rows count for their key. One thread at a time.

        Of several records of a key one counts: without a lock two attempts may each have written theirs.
        Raises LedgerError if segments are merged, or expire, in the meantime.
        """
        store = self._store
        for number in range(len(store.frames)):
            with self._mutex:
                is_same = store is self._store
                try:
                    rows = store.rows(number) if is_same else None
                    places = [] if rows is None else self._counting(rows, number)
                except FileNotFoundError:
                    is_same = False
            if not is_same:
                raise LedgerError(
                    f"the segments of {self._folder.path} were merged or deleted while they were read: try "
                    "again"
                )
            if rows is not None:
                yield rows, places

    def records(self) -> Iterator[Record]:
        """Every record that counts, segment by segment. For one thread; raises as `frames` and `get` do."""
        return (rows.record(row) for rows, places in self.frames() for row in places)

    @undisturbed
    def spent(self) -> tuple[int, float]:
        """Attempts and cost of all records, also of those that another one of their key has replaced.

        Any thread. Reads every frame. Raises OSError.
        """
        frames = map(self._store.rows, range(len(self._store.frames)))
        spent = [rows.spent() for rows in frames if rows is not None]
        return sum(attempts for attempts, _ in spent), sum(cost for _, cost in spent)

    @undisturbed
    def times(self) -> dict[bytes, tuple[float, float]]:
        """The begin of the first call of each execution and the end of its last, in seconds since 1970.

        Any thread. Reads every frame. Raises OSError.
        """
        times: dict[bytes, tuple[float, float]] = {}
        for rows in map(self._store.rows, range(len(self._store.frames))):
            for execution, time in {} if rows is None else rows.times().items():
                add_time(times, execution, time)
        return times

    def close(self) -> None:
        """Close the files. A reader that is used again opens them again."""
        self._folder.close()

    # -- for the writer ---------------------------------------------------------------------------

    @property
    def state(self) -> tuple[int, int]:
        """A mark of what the reader knows: it is another one when there may be more. Any thread."""
        with self._mutex:
            return self._forgotten, self._store.index.count

    def catch_up(self, lock: int) -> None:
        """Look what others have committed since the last time. Any thread.

        lock: the file of the folder's lock, which the caller holds, so that nobody commits.
        """
        if not isinstance(self._folder, LocalFolder):
            return
        with self._mutex:
            # spec: Ledger!Write
            names, mark = self._folder.committed(lock, self._mark)
            self._look_at(names)
            self._mark = mark

    def take_in(self, frames: Sequence[tuple[Frame, bytes]]) -> None:
        """Know what was just appended to a segment, without reading it again. Any thread."""
        with self._mutex:
            for frame, keys in frames:
                self._segments.take_in(frame, keys, frame is frames[0][0])

    def is_durable(self, name: str, end: int) -> None:
        """Know that a segment is on the disk up to byte `end`. Any thread."""
        with self._mutex:
            self._synced[name] = max(end, self._synced.get(name, 0))

    # -- inside, with the mutex held ----------------------------------------------------------

    def _forget(self) -> None:
        self._forgotten += 1
        self._store = FrameStore(self._folder.read, self._damage.report)
        self._segments = Segments(self._folder, self._owner, self._store.add, self._damage.report)
        self._synced: dict[str, int] = {}
        # Frames of which it is known whether all of their rows are plain values.
        self._plain: dict[int, bool] = {}
        self._mark = self._mark_unlocked = None

    def _look_at(self, names: set[str] | None) -> None:
        """Take in what these segments have since the last time; None for all segments."""
        if names is None:
            self.refresh()
            return
        try:
            for name in names:
                size = self._folder.size(name)
                if self._segments.has_changed(name, size):
                    self._scan(name, size)
        except FileNotFoundError:
            # Merged before it was looked at, or announced by who was killed before it was made.
            self.refresh()

    def _scan(self, name: str, size: int) -> None:
        """Take in what a segment has since the last time. Raises FileNotFoundError if it has gone."""
        self.scans += 1
        self._segments.scan(name, size)

    def _durable(self, key: bytes, input: bytes | None, errors: bool) -> tuple[Rows, int] | None:
        """The frame and row of a key's record that counts, on the disk when this returns."""
        place = self._place(key, input)
        if place is None:
            return None
        number, rows, row = place
        if not errors and rows.kinds[row] == ERROR:
            return None
        self._make_durable(self._store.frames[number])
        return rows, row

    def _make_durable(self, frame: Frame) -> None:
        if frame.end <= self._synced.get(frame.segment, 0):
            return
        # Its writer may not have come to that, and never will if it was killed.
        size = self._folder.size(frame.segment)
        self._folder.sync(frame.segment)  # spec: Ledger!Sync
        if self._folder.size(frame.segment) < frame.end:
            # Its writer could not make it durable, and has cut it off.
            raise FileNotFoundError(frame.segment)
        self._synced[frame.segment] = size

    def _plain_rows(self, number: int, execution: bytes) -> Rows | None:
        """The rows of a frame, on the disk when this returns, if they are as `search_each` says."""
        rows = self._store.rows(number)
        if rows is None or execution in rows.executions:
            return None
        is_plain = self._plain.get(number)
        if is_plain is None:
            has_values = ERROR not in rows.kinds and rows.versions.count(self.version) == rows.count
            is_plain = self._plain[number] = has_values and rows.vectors is None
        if not is_plain:
            return None
        self._make_durable(self._store.frames[number])
        return rows

    def _other(self, key: bytes, input: bytes, execution: bytes) -> Origin | None:
        """The input of the key's latest record that is another than this; one of `execution` first."""
        other, other_at = None, 0
        for _, rows, row in self._of_key(key):
            if self._answers(rows, row, input):
                continue
            origin = rows.origin(row)
            if origin.execution == execution:
                return origin
            # Segments come in the order of their names, which are random. A row that failed would have been
            # called again in any case.
            at = rows.at(row)
            if at >= other_at and (self.accepts_errors or rows.kinds[row] != ERROR):
                other, other_at = origin, at
        return other

    def _answers(self, rows: Rows, row: int, input: bytes) -> bool:
        if rows.versions[row] != self.version:
            return False
        kept = rows.inputs[row]
        return kept == input or is_answer(kept, input, self._some_inputs)

    def _of_key(self, key: bytes) -> Iterator[tuple[int, Rows, int]]:
        """The whole records of a key, each by its frame's number, the frame's rows and its row in them."""
        for record in self._store.index.find(key):
            number, rows, row = self._store.locate(record)
            # The index knows half of the key.
            if rows is not None and rows.key(row) == key and rows.at(row) >= self._since:
                yield number, rows, row

    def _place(
        self, key: bytes, input: bytes | None = None, like: Origin | None = None
    ) -> tuple[int, Rows, int] | None:
        """The record that counts for a key, in the form of `_of_key`.

        input: of which it is to be the answer, None for any. like: of a record whose input and version count.
        """
        found, error, found_at, error_at = None, None, 0, 0
        # Not by `_of_key`: on the path of every row that is found, a generator costs.
        for record in self._store.index.find(key):
            number, rows, row = self._store.locate(record)
            if rows is None or rows.key(row) != key:
                continue
            if input is not None and not self._answers(rows, row, input):
                continue
            # spec: Cache!Answer
            if self._since and rows.at(row) < self._since:
                continue
            if like is not None and rows.origin(row)[:2] != like[:2]:
                continue
            if rows.kinds[row] != ERROR and (like is None or not self._newest):
                return number, rows, row
            at = rows.at(row)
            if rows.kinds[row] != ERROR:
                if found is None or at > found_at:
                    found, found_at = (number, rows, row), at
                continue
            # Where failed rows are called again, the last failure is the one that was seen.
            if error is None or (not self.accepts_errors and at >= error_at):
                error, error_at = (number, rows, row), at
        return found or error

    def _counting(self, rows: Rows, number: int) -> list[int]:
        """The rows of a frame that count for their key: one for each input and version."""
        places = []
        for row in range(rows.count):
            key = rows.key(row)
            if len(self._store.index.find(key)) > 1:
                place = self._place(key, like=rows.origin(row))
                if place is None or (place[0], place[2]) != (number, row):
                    continue
            places.append(row)
        return places


def is_own(folder: Folder, about: Mapping[str, str], name: str, size: int) -> bool:
    """Return True for a file that a ledger has written as a segment of `folder`. Any thread. Raises OSError.

    about: whose the folder is. By what the segment says of itself; one that is damaged counts.
    """
    try:
        return bool(SEGMENT_NAME.fullmatch(name)) and is_of(
            lambda offset, length: folder.read(name, offset, length), size, name, about
        )
    except FileNotFoundError:
        return False
