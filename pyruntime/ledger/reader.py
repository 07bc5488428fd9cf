"""Finds finished calls again: scans a scope's segments, and reads what is asked for, checked and durable.

Starting costs reading heads and keys; results are read when they are asked for. Thread-safe.
"""

# The index of records by their keys has to hold tens of millions of them: sorted arrays of the first 8
# bytes of each key, and for each the number of its record, in the order in which records count; 16 bytes a
# record. What comes in while a task runs waits in a dict until it is worth sorting (Bentley and Saxe's
# logarithmic method; the runs of an LSM tree). Keys are hashes, so the first bits of one say in which small
# part of a sorted array it would be. Eight bytes may be shared by two keys: who finds a record compares the
# whole key.

from __future__ import annotations

import functools
import threading
import warnings
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any, NamedTuple, TypeVar, cast

from pillarbox.ledger.errors import Damage, LedgerError, LedgerWarning
from pillarbox.ledger.format import (
    ERROR,
    ForeignSegmentError,
    Frame,
    Origin,
    Record,
    Rows,
    is_of,
    open_frame,
    owner_of,
    scan,
)
from pillarbox.ledger.keys import KEY_BYTES, Scope, is_answer
from pillarbox.ledger.local_folder import SEGMENT_NAME, SUFFIX, LocalFolder, Mark
from pillarbox.ledger.object_folder import ObjectFolder

Folder = LocalFolder | ObjectFolder
Method = TypeVar("Method", bound=Callable[..., Any])
CACHED_FRAME_BYTES = 16 * 2**20
"""Bytes of frames that are kept at hand: a replay asks in the order of the first time, more or less."""
FRAME_OBJECT_BYTES = 4096
"""Bytes of Python's objects for a frame, about."""
MAX_SCAN_TRIES = 10


MAX_UNSORTED_RECORDS = 2**16
"""Records that wait in a dict."""
MIN_RUN_RATIO = 4
"""A sorted array is so many times as large as the next one, at least, or both become one."""
DIRECTORY_BITS = 16
"""Parts of a large array: so many bits of a key choose one."""

NO_RECORD = -1
SEVERAL_RECORDS = -2

_first_word = Struct("=Q8x").unpack


class _Run:
    """Sorted first words of keys, and the numbers of their records."""

    def __init__(self, words: object, numbers: object) -> None:
        self.words = _words_of(words)
        self.numbers = _words_of(numbers)
        bits = min(DIRECTORY_BITS, max(0, len(self.words).bit_length() - 4))
        self.shift = 64 - bits
        starts = array("Q", bytes(8))
        for part in range(1, 2**bits):
            starts.append(bisect_left(self.words, part << self.shift, starts[-1]))
        starts.append(len(self.words))
        self.starts = starts

    def __len__(self) -> int:
        return len(self.words)


class KeyIndex:
    """Numbers of records by key, in the order in which they were added. A `LedgerReader` guards it."""

    def __init__(self, max_unsorted: int = MAX_UNSORTED_RECORDS, min_run_ratio: int = MIN_RUN_RATIO) -> None:
        self._max_unsorted, self._min_run_ratio = max_unsorted, min_run_ratio
        self.count = 0
        self._waiting = bytearray()
        self._first = 0
        self._fresh: dict[int, int | list[int]] = {}
        self._indexed = 0
        self._runs: list[_Run] = []

    def add(self, keys: bytes) -> None:
        """Add keys, 16 bytes each; their records have the next numbers."""
        self._waiting += keys
        self.count += len(keys) // KEY_BYTES

    def find(self, key: bytes) -> Sequence[int]:
        """The numbers of the records that may have this key, the first one first."""
        if self._first + self._indexed != self.count:
            self._settle()
        return self._find(*_first_word(key))

    def may_have_any(self, keys: Sequence[bytes]) -> bool:
        """Return False if none of these keys has a record."""
        if self._first + self._indexed != self.count:
            self._settle()
        words = memoryview(b"".join(keys)).cast("Q")[::2].tolist()
        if not self._fresh.keys().isdisjoint(words):
            return True
        return bool(self._runs) and any(map(self._find, words))

    def repeated(self, words: Sequence[int]) -> list[int]:
        """The places of those first words of keys that several records have."""
        if self._first + self._indexed != self.count:
            self._settle()
        if not self._runs:
            # Of several numbers there is a list.
            return [place for place, there in enumerate(map(self._fresh.get, words)) if type(there) is list]
        find = self._find
        return [place for place, word in enumerate(words) if len(find(word)) > 1]

    def singles(self, words: Sequence[int]) -> list[int]:
        """The number of the only record of each of these first words of keys; below 0 for all others."""
        if self._first + self._indexed != self.count:
            self._settle()
        fresh, runs = self._fresh, self._runs
        found = []
        for word in words:
            there = fresh.get(word)
            number = NO_RECORD if there is None else there if isinstance(there, int) else SEVERAL_RECORDS
            for run in runs:
                part = word >> run.shift
                sorted_words, end = run.words, run.starts[part + 1]
                at = bisect_left(sorted_words, word, run.starts[part], end)
                if at < end and sorted_words[at] == word:
                    is_only = number == NO_RECORD and (at + 1 == end or sorted_words[at + 1] != word)
                    number = run.numbers[at] if is_only else SEVERAL_RECORDS
            found.append(number)
        return found

    def _find(self, word: int) -> Sequence[int]:
        there = self._fresh.get(word)
        fresh = () if there is None else (there,) if isinstance(there, int) else there
        if not self._runs:
            return fresh
        found: list[int] = []
        for run in self._runs:
            part = word >> run.shift
            words, end = run.words, run.starts[part + 1]
            at = bisect_left(words, word, run.starts[part], end)
            while at < end and words[at] == word:
                found.append(run.numbers[at])
                at += 1
        # Runs are merged in any order; what is fresh came later.
        found.sort()
        found += fresh
        return found

    def _settle(self) -> None:
        """Make what was added findable."""
        waiting = len(self._waiting) // KEY_BYTES
        if waiting > self._max_unsorted:
            self._sort()
            return
        words = memoryview(bytes(self._waiting[self._indexed * KEY_BYTES :])).cast("Q")[::2]
        fresh = self._fresh
        for number, word in enumerate(words, self._first + self._indexed):
            # Nearly all are the only one of their key, and a number alone is made faster than a list of one.
            there = fresh.setdefault(word, number)
            if there is not number:
                fresh[word] = [*([there] if isinstance(there, int) else there), number]
        self._indexed = waiting

    def _sort(self) -> None:
        """Turn what waits into a sorted run, and runs of a like size into one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        words = array("Q", memoryview(self._waiting).cast("Q")[::2].tobytes())
        prefixes: Any = _array_of(words)
        order = pc.sort_indices(prefixes)
        prefixes, numbers = prefixes.take(order), pc.add(order, pa.scalar(self._first, pa.uint64()))
        self._waiting, self._fresh, self._indexed = bytearray(), {}, 0
        self._first = self.count
        while self._runs and len(self._runs[-1]) < self._min_run_ratio * len(prefixes):
            run = self._runs.pop()
            prefixes = pa.concat_arrays([_array_of(run.words), prefixes])
            numbers = pa.concat_arrays([_array_of(run.numbers), numbers])
            del run
            order = pc.sort_indices(prefixes)
            prefixes, numbers = prefixes.take(order), numbers.take(order)
        self._runs.append(_Run(prefixes, numbers))


def _words_of(column: Any) -> array[int]:
    words = array("Q")
    words.frombytes(memoryview(column.buffers()[1]).cast("B")[column.offset * 8 :][: len(column) * 8])
    return words


def _array_of(words: array[int]) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.uint64(), len(words), [None, pa.py_buffer(words)])


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
        self._damage: list[Damage] = []
        self._forget()
        self.refresh()

    def __len__(self) -> int:
        """Records found so far, of two with the same key both."""
        return self._index.count

    @property
    def damage(self) -> list[Damage]:
        """The parts that are not trusted, in the order they were met, but for the ends of open segments."""
        with self._mutex:
            tails = [tail for name, tail in self._tails.items() if not self._folder.is_open(name)]
            return [*self._damage, *tails]

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
                if not self._sizes.keys() <= sizes.keys():
                    # Merged in the meantime, and what it became has the same records; or expired.
                    self._forget()
                changed = [(name, size) for name, size in sizes.items() if size != self._sizes.get(name)]
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
            return self._search(key, input, execution, in_blocks) if self._index.find(key) else None

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
        if self._index.repeated(memoryview(some).cast("Q")[::2].tolist()):
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
        starts, since = self._starts, self._since
        rows: Rows | None = None
        begin = end = 0
        numbers = self._index.singles(memoryview(b"".join(keys)).cast("Q")[::2].tolist())
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
            if not self._index.find(pair[0]):
                continue
            if (place := self._place(*pair)) is not None:
                kinds[pair] = place[1].kinds[place[2]]
            elif (other := self._other(*pair, execution)) is not None and other.execution == execution:
                conflicts[pair] = other
        return kinds, conflicts

    def may_have_any(self, keys: Sequence[bytes]) -> bool:
        """Return False if none of these keys has a record, durable or not yet. Any thread."""
        with self._mutex:
            return self._index.may_have_any(keys)

    def repeated(self, words: Sequence[int]) -> list[int]:
        """The places of those first 8 bytes of keys, as numbers, that several records have. Any thread."""
        with self._mutex:
            return self._index.repeated(words)

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
        frames = self._frames
        for number in range(len(frames)):
            with self._mutex:
                is_same = frames is self._frames
                try:
                    rows = self._rows(number) if is_same else None
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
        frames = map(self._rows, range(len(self._frames)))
        spent = [rows.spent() for rows in frames if rows is not None]
        return sum(attempts for attempts, _ in spent), sum(cost for _, cost in spent)

    def close(self) -> None:
        """Close the files. A reader that is used again opens them again."""
        self._folder.close()

    # -- for the writer ---------------------------------------------------------------------------

    @property
    def state(self) -> tuple[int, int]:
        """A mark of what the reader knows: it is another one when there may be more. Any thread."""
        with self._mutex:
            return self._forgotten, self._index.count

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
                known = self._scanned.get(frame.segment)
                if known == frame.begin or (known is None and frame is frames[0][0]):
                    self._tails.pop(frame.segment, None)
                    self._add(frame, keys)
                    self._sizes[frame.segment] = frame.end

    def is_durable(self, name: str, end: int) -> None:
        """Know that a segment is on the disk up to byte `end`. Any thread."""
        with self._mutex:
            self._synced[name] = max(end, self._synced.get(name, 0))

    # -- inside, with the mutex held ----------------------------------------------------------

    def _forget(self) -> None:
        self._forgotten += 1
        self._index = KeyIndex()
        self._frames: list[Frame] = []
        self._starts = array("Q")
        self._sizes: dict[str, int] = {}
        self._scanned: dict[str, int] = {}
        self._tails: dict[str, Damage] = {}
        self._synced: dict[str, int] = {}
        self._batches: OrderedDict[int, Rows] = OrderedDict()
        self._batches_bytes = 0
        self._refused: set[int] = set()
        # Frames of which it is known whether all of their rows are plain values.
        self._plain: dict[int, bool] = {}
        self.foreign: set[str] = set()
        self._mark = self._mark_unlocked = None

    def _look_at(self, names: set[str] | None) -> None:
        """Take in what these segments have since the last time; None for all segments."""
        if names is None:
            self.refresh()
            return
        try:
            for name in names:
                size = self._folder.size(name)
                if size != self._sizes.get(name):
                    self._scan(name, size)
        except FileNotFoundError:
            # Merged before it was looked at, or announced by who was killed before it was made.
            self.refresh()

    def _scan(self, name: str, size: int) -> None:
        """Take in what a segment has since the last time. Raises FileNotFoundError if it has gone."""
        self.scans += 1
        if name in self.foreign:
            return
        try:
            self._scan_own(name, size)
        except ForeignSegmentError as error:
            # Copied or moved there: what it says is about other rows.
            self.foreign.add(name)
            self._report(Damage(name, 0, size, f"belongs to {error} and is not believed here", False))
        self._sizes[name] = size

    def _scan_own(self, name: str, size: int) -> None:
        found = scan(
            lambda offset, length: self._folder.read(name, offset, length),
            size,
            name,
            name[: -len(SUFFIX)],
            self._scanned.get(name, 0),
            self._owner,
        )
        self._tails.pop(name, None)
        for item in found:
            if isinstance(item, Damage):
                if item.is_tail:
                    # It may be what somebody is writing now.
                    self._tails[name] = item
                    break
                self._report(item)
            else:
                self._add(*item)

    def _add(self, frame: Frame, keys: bytes) -> None:
        self._starts.append(self._index.count)
        self._frames.append(frame)
        self._index.add(keys)
        self._scanned[frame.segment] = frame.end

    def _report(self, damage: Damage) -> None:
        if damage not in self._damage:
            self._damage.append(damage)
            warnings.warn(
                LedgerWarning(f"{self._folder.path}: {damage}. Its calls are made again"), stacklevel=2
            )

    def _durable(self, key: bytes, input: bytes | None, errors: bool) -> tuple[Rows, int] | None:
        """The frame and row of a key's record that counts, on the disk when this returns."""
        place = self._place(key, input)
        if place is None:
            return None
        number, rows, row = place
        if not errors and rows.kinds[row] == ERROR:
            return None
        self._make_durable(self._frames[number])
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
        rows = self._rows(number)
        if rows is None or execution in rows.executions:
            return None
        is_plain = self._plain.get(number)
        if is_plain is None:
            has_values = ERROR not in rows.kinds and rows.versions.count(self.version) == rows.count
            is_plain = self._plain[number] = has_values and rows.vectors is None
        if not is_plain:
            return None
        self._make_durable(self._frames[number])
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
        for record in self._index.find(key):
            number = bisect_right(self._starts, record) - 1
            rows = self._rows(number)
            row = record - self._starts[number]
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
        for record in self._index.find(key):
            number = bisect_right(self._starts, record) - 1
            rows = self._rows(number)
            row = record - self._starts[number]
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
            if len(self._index.find(key)) > 1:
                place = self._place(key, like=rows.origin(row))
                if place is None or (place[0], place[2]) != (number, row):
                    continue
            places.append(row)
        return places

    def _rows(self, number: int) -> Rows | None:
        """The records of a frame; None if they are damaged."""
        rows = self._batches.get(number)
        if rows is not None:
            self._batches.move_to_end(number)
            return rows
        if number in self._refused:
            return None
        frame = self._frames[number]
        opened = open_frame(frame, lambda offset, length: self._folder.read(frame.segment, offset, length))
        if isinstance(opened, Damage):
            self._refused.add(number)
            self._report(opened)
            return None
        self._batches[number] = rows = Rows(opened)
        self._batches_bytes += frame.length + FRAME_OBJECT_BYTES
        while len(self._batches) > 1 and self._batches_bytes > CACHED_FRAME_BYTES:
            self._batches_bytes -= (
                self._frames[self._batches.popitem(last=False)[0]].length + FRAME_OBJECT_BYTES
            )
        return rows


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
