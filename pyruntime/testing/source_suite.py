"""`source_suite`: checks a connector against the contract of a `Source`, one's own or ours.

Each check makes sources anew, reads them with the framework's readers and with the connector's own
`SplitReader`, and fails with a `ContractBroken` that names class, method and rule. In the thread of the test
runner. `RULES` says what is checked, a method each says how.
"""

# Why rows are compared by their `identity`: they need not be hashable, NaN is equal to itself, 1 is not True,
# and of a long vector the number that differs may be any.
#
# Why every check makes its sources anew: what is wrong with a connector is often what it remembers, and a
# source that was read once hides that from the next check.
#
# Why ranges begin and end at each position that the reader itself has said (of very many, at forty). Mistakes
# are at edges: the row at a position that comes twice or never, a `stop` within a batch of the service, a
# position behind the last row. Whoever writes tests by hand thinks of some of them.
#
# Why a rule's words are part of the error. The suite is for those who write a connector and do not know the
# contract by heart: "5 rows for 6" says that it is broken, the rule says what was promised, and by which
# method.
#
# Why the limits are one row, seven, a hundred bytes and none: one is the smallest front that must be given,
# seven seldom divides batches or splits, bytes are what a service may not know, and none reads all.

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
import threading
import time
import unittest
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, is_dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from pillarbox.sources import Fetched, Source, Split, SplitReader
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SplitsAdded, read_splits
from pillarbox.sources.source import Boundedness
from pillarbox.sources.split import is_json
from pillarbox.testing.identity import identity
from pillarbox.testing.source_harness import SourceHarness, rows_of

MAX_SPLITS = 10_000
IDLE_FETCHES = 20
MIN_IDLE_S = 0.2
"""Seconds that so many fetches take at least, where there is nothing to fetch."""
IDLE_ROUNDS = 3
MAX_PREFIXES = 40
DRAINED_AFTER_S = 0.5
LIMITS = (ReadLimit(rows=1), ReadLimit(rows=7), ReadLimit(nbytes=100), ReadLimit())

RULES = {
    "plain_value": "a source is a plain value: it pickles, and its copy reads the same",
    "boundedness": "`make` gives a source that has an end, `follow` one that has none",
    "secrets": "its text, its splits and its checkpoints show no secret",
    "options": "its options make the same source, and one that is unknown is a ValueError that names it",
    "discovery": "discovery changes nothing, finds each split once, and comes to an end",
    "splits": "splits are frozen dataclasses that JSON and pickle give back as they are",
    "rows": "each row comes once, whatever the number of readers, and a source that has an end stays there",
    "types": "rows have the columns and types of arrow_schema, or those that ReaderContext.schema asks for",
    "replay": "the same range gives the same rows in the same order, at any later time",
    "positions": "from each position to another come the rows between them, to the end all, and no other",
    "checkpoints": "from a checkpoint anywhere, with any number of readers, no row is lost or comes twice",
    "micro_batches": "micro-batches go forward, have each row once, and have it again when read again",
    "wake_ups": "a wake-up loses no row, and a split is finished at some time",
    "idle": f"a fetch that finds nothing blocks: {IDLE_FETCHES} of them take {MIN_IDLE_S} s or more",
    "blocked_fetch": "a fetch that blocks returns soon after a wake-up, also one that came before it",
    "new_rows": "rows that are added are read once, also by who was restarted meanwhile",
    "new_ranges": "a micro-batch has rows that are there, none when all were read, and those that are added",
    "close": "close is soon done, may come twice, and leaves no thread, file or connection",
    "bad_rows": "a value that cannot be read fails the read, and the error shows it",
    "lost_data": "data that has gone before it was read fails the read, and the error names its split",
}
"""The checks and what they hold."""


class ContractBroken(AssertionError):
    """A connector breaks a rule of the contract. `method`: `Class.method`. `rule`: its words."""

    def __init__(self, method: str, rule: str, found: str) -> None:
        self.method, self.rule = method, rule
        super().__init__(f"{method}: {rule}. Found: {found}")


@dataclass(frozen=True)
class SourceSuite:
    """The checks of one connector. `check(name)` runs one of `RULES`, `check_all` all it can.

    make: gives a bounded source over data that does not change; the same one at each call. Two splits or
        more, each of several fetches, make the checks sharp.
    rows: its rows as tuples, in any order; None: those that it reads first.
    follow: gives a source without an end, whose data changes by `add` only.
    add: adds rows to what `follow` reads, and returns them as tuples.
    lose: takes away, behind the source's back, what `make` reads, or `lost` if that is given.
    bad: gives a source with a value that cannot be read, and the text by which the error shows it.
    options: Spark's options that `from_options` makes the source from.
    secrets: texts that must not be seen.
    wake_within: seconds that a fetch may go on after its wake-up. timeout: seconds of any other wait.

    Raises ContractBroken; unittest.SkipTest from `check` for a check without its argument.
    """

    make: Callable[[], Source[Any, Any]]
    rows: Collection[tuple[Any, ...]] | None = None
    follow: Callable[[], Source[Any, Any]] | None = None
    add: Callable[[], Sequence[tuple[Any, ...]]] | None = None
    lose: Callable[[], object] | None = None
    lost: Callable[[], Source[Any, Any]] | None = None
    bad: tuple[Callable[[], Source[Any, Any]], str] | None = None
    options: Mapping[str, str] | None = None
    secrets: Collection[str] = ()
    wake_within: float = 2.0
    timeout: float = 30.0

    def check_all(self) -> None:
        """Run all checks that have their arguments, those first that find out most simply."""
        for name in RULES:
            try:
                self.check(name)
            except unittest.SkipTest:
                continue

    def check(self, name: str) -> None:
        """Run one check."""
        before = set(threading.enumerate())
        getattr(self, f"_{name}")(RULES[name])
        deadline = time.monotonic() + self.timeout
        left = [thread for thread in threading.enumerate() if thread not in before]
        for thread in left:
            thread.join(max(0.0, deadline - time.monotonic()))
        if alive := [thread.name for thread in left if thread.is_alive()]:
            raise _broken(self._method, RULES["close"], f"threads {', '.join(alive)} go on")

    # -- values --------------------------------------------------------------------------------------

    def _plain_value(self, rule: str) -> None:
        source = self.make()
        try:
            copy = pickle.loads(pickle.dumps(source))
        except Exception as error:
            raise ContractBroken(f"{_name(source)}.__reduce__", rule, repr(error)) from error
        self._compare(self._read_all(copy), self._expected, f"{_name(source)}.__reduce__", rule)
        schema = source.arrow_schema()
        if not schema == source.arrow_schema() == copy.arrow_schema():
            raise _broken((source, "arrow_schema"), "it gives the same columns at every call", str(schema))

    def _boundedness(self, rule: str) -> None:
        for make, bound in ((self.make, True), (self.follow, False)):
            if make is not None and (make().boundedness is Boundedness.BOUNDED) is not bound:
                raise _broken((make(), "boundedness"), rule, repr(make().boundedness))

    def _secrets(self, rule: str) -> None:
        _needs("secrets", self.secrets)
        for make in filter(None, (self.make, self.follow)):
            source = make()
            with SourceHarness(source, timeout=self.timeout) as harness:
                splits = self._discover(harness)
                written = json.dumps(harness.snapshot())
            for method, text in (("__repr__", f"{source!r} {source}"), ("split_type", f"{splits} {written}")):
                for secret in self.secrets:
                    if secret in text:
                        raise _broken((source, method), rule, text.replace(secret, "<the secret>"))

    def _options(self, rule: str) -> None:
        options, kind = _needs("options", self.options), type(self.make())
        made = self._told(lambda: kind.from_options(dict(options), None))
        self._compare(self._read_all(made), self._expected, f"{_name(kind)}.from_options", rule)
        try:
            kind.from_options({**options, "nosuchoption": "1"}, None)
        except ValueError as error:
            if "nosuchoption" not in str(error):
                raise _broken((kind, "from_options"), rule, repr(error)) from error
        else:
            raise _broken((kind, "from_options"), rule, "'nosuchoption' was taken")

    def _splits(self, rule: str) -> None:
        source = self.make()
        kind, serializer = source.split_type, source.split_serializer
        frozen = is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen  # noqa: B009
        _require(frozen and issubclass(kind, Split), (source, "split_type"), rule, kind)
        for split in self._found:
            written = serializer.to_json(split)
            read = serializer.from_json(serializer.version, json.loads(json.dumps(written)))
            _require(is_json(written), (split, "fields"), rule, written)
            if not (read == split == pickle.loads(pickle.dumps(split)) and type(read) is type(split)):
                raise _broken((split, "fields"), rule, f"{read!r} for {split!r}")
            if not (isinstance(split.split_id, str) and split.split_id):
                raise _broken((split, "split_id"), "it is a text that is not empty", repr(split.split_id))
            for name in ("rows", "nbytes", "files"):
                count = getattr(split, name)
                is_count = count is None or (isinstance(count, int) and count >= 0)
                _require(is_count, (split, name), "it is a whole number of 0 or more, or None", count)
            for position in (each.position for each in self._read(split)[:-1]):
                rest, front = split.starting_at(position), split.up_to(position)
                is_rest = (rest.split_id, rest.start, rest.stop) == (split.split_id, position, split.stop)
                _require(is_rest, (split, "starting_at"), "it changes `start` alone", (rest, split))
                is_front = (front.split_id, front.start, front.stop) == (
                    split.split_id,
                    split.start,
                    position,
                )
                _require(is_front, (split, "up_to"), "it changes `stop` alone", (front, split))

    # -- discovery -----------------------------------------------------------------------------------

    def _discovery(self, rule: str) -> None:
        found = [self._discover_purely(self.make(), most, rule) for most in (1000, 1, 2)]
        if found.count(found[0]) != 3:
            raise _broken((self._enumerator, "discover"), rule, f"other splits with another `most`: {found}")
        if self.follow is not None:
            self._discover_purely(self.follow(), 1000, rule)

    def _discover_purely(self, source: Source[Any, Any], most: int, rule: str) -> set[str]:
        """All names that are found, on a thread of its own, by enumerators restored from what is written."""
        serializer, names = source.checkpoint_serializer, list[str]()

        def read(written: str) -> Any:
            return serializer.from_json(serializer.version, json.loads(written))

        def write(checkpoint: object) -> str:
            written = serializer.to_json(checkpoint)
            _require(is_json(written), (serializer, "to_json"), "JSON can hold what it writes", written)
            return json.dumps(written, sort_keys=True)

        with SourceHarness(source) as harness, ThreadPoolExecutor(1) as thread:
            enumerator, method = harness.enumerator, (harness.enumerator, "discover")
            for _ in range(MAX_SPLITS):
                before = write(enumerator.checkpoint)
                known = read(before)
                splits, new = thread.submit(enumerator.discover, known, most).result(self.timeout)
                again, _ = thread.submit(enumerator.discover, known, most).result(self.timeout)
                if write(known) != before or write(enumerator.snapshot()) != before:
                    raise _broken(method, rule, f"it has changed the checkpoint {before}")
                if [each.split_id for each in again] != [each.split_id for each in splits]:
                    raise _broken(method, rule, f"{splits} from {before}, and then {again} from the same")
                if len(splits) > most:
                    raise _broken(method, "it returns at most `most` splits", f"{len(splits)} for {most}")
                names += [split.split_id for split in splits]
                if twice := [name for name, count in Counter(names).items() if count > 1]:
                    raise _broken(method, rule, f"{twice[:5]} twice: what it returns must know these splits")
                for split in splits:
                    reader = enumerator.assigned_to(split)
                    if reader is not None and not 0 <= reader < harness.context.parallelism:
                        raise _broken((enumerator, "assigned_to"), "it names a reader, or None", repr(reader))
                enumerator.close()
                written = write(new)
                enumerator = source.restore_enumerator(harness.context, read(written))
                if write(enumerator.snapshot()) != written:
                    raise _broken((enumerator, "snapshot"), "it gives what it was restored with", written)
                if not splits:
                    enumerator.close()
                    return set(names)
        raise _broken(method, rule, f"{len(names)} splits, and more")

    # -- rows ----------------------------------------------------------------------------------------

    def _rows(self, rule: str) -> None:
        for readers in (1, 2, 3):
            with SourceHarness(self.make(), readers=readers, timeout=self.timeout) as harness:
                found = self._told(harness.read_all)
                self._compare(found, self._expected, self._method, f"{rule}, here {readers}")
                if more := harness.discover():
                    raise _broken((harness.enumerator, "discover"), rule, f"{more} after the end")

    def _types(self, rule: str) -> None:
        schema = self.make().arrow_schema()
        for split in self._found:
            for fetched in self._read(split):
                self._check_types(fetched, schema, rule)
        for names in (schema.names[::-1], schema.names[-1:]):
            wanted = schema.empty_table().select(names).schema
            places = [schema.names.index(name) for name in names]
            for split in self._found[:2]:
                found = self._read_anew(split, ReaderContext(schema=wanted))
                for fetched in found:
                    self._check_types(fetched, wanted, rule)
                rows = [row for fetched in found for row in _in_order(fetched, names)]
                due = [tuple(row[at] for at in places) for row in _rows(self._read(split))]
                self._compare(rows, due, self._method, f"{rule}, here {names}", ordered=True)

    def _check_types(self, fetched: Fetched, schema: Any, rule: str) -> None:
        arrow = sys.modules[type(schema).__module__.partition(".")[0]]  # whoever has a schema has imported it
        records: Any = fetched.records
        method = self._method
        named = getattr(records, "schema", None)
        if named is None and (
            bad := [row for row in records if type(row) is not tuple or len(row) != len(schema)]
        ):
            raise _broken(method, rule, f"{bad[0]!r}: must be a tuple of {schema.names}")
        for at, field in enumerate(schema):
            name = f"column {field.name!r}"
            if named is None:
                try:
                    column = arrow.array([row[at] for row in records], field.type)
                except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
                    raise _broken(method, rule, f"{name} is not {field.type}: {error}") from error
            elif len(places := named.get_all_field_indices(field.name)) != 1:
                raise _broken(method, rule, f"{name} {len(places)} times in {named.names}")
            else:
                column = records.column(places[0])
            if column.type != field.type or (column.null_count and not field.nullable):
                nulls = f" with {column.null_count} nulls" * (not field.nullable)
                raise _broken(method, rule, f"{name} is {column.type}{nulls}, not {field.type}")

    def _replay(self, rule: str) -> None:
        for source in (self.make(), self.make()):
            for split in [*self._found, *self._found[::-1]]:
                self._check_range(source, split, _rows(self._read(split)), rule)

    def _positions(self, rule: str) -> None:
        for split in self._found:
            rows, places = _rows(self._read(split)), _places(self._read(split))
            for count, position in places:
                self._check_range(self.make(), split.starting_at(position), rows[count:], rule)
                self._check_range(self.make(), split.up_to(position), rows[:count], rule)
            for (first, start), (last, stop) in pairwise([*places[:1], *places]):
                piece = split.starting_at(start).up_to(stop)
                self._check_range(self.make(), piece, rows[first:last], rule)

    def _checkpoints(self, rule: str) -> None:
        for polls in range(MAX_PREFIXES):
            with SourceHarness(self.make(), readers=2, timeout=self.timeout) as harness:
                self._told(partial(_poll, harness, polls))
                rows, snapshot, ended = [*harness.rows], harness.snapshot(), harness.ended
            rows += self._read_all(self.make(), readers=1 + polls % 3, snapshot=snapshot)
            self._compare(rows, self._expected, self._method, f"{rule}, here after {polls} polls")
            if ended:
                return

    def _micro_batches(self, rule: str) -> None:
        for limit in LIMITS:
            rows = list[Any]()
            with SourceHarness(self.make(), timeout=self.timeout) as harness:
                method = harness.enumerator, "advance"
                splits = {split.split_id: split for split in self._discover(harness)}
                if self._refuses(harness, limit):
                    continue
                for _ in range(10 * len(self._expected) + 100):
                    pieces = self._told(partial(harness.plan, limit))
                    for piece in pieces:
                        split = splits[piece.split_id]
                        is_front = piece.start == split.start and piece.stop is not None
                        _require(is_front, method, "it returns the front of a split", (piece, split))
                        if piece != harness.enumerator.advance(split, limit):
                            # What was left of the limit may have been less; but it is the same twice.
                            self._check_again(harness, split, limit)
                        splits[piece.split_id] = split.starting_at(piece.stop)
                        read = self._told(partial(harness.read_split, piece))
                        self._check_range(self.make(), piece, read, rule)
                        if limit.rows is not None and None is not piece.rows <= limit.rows < len(read):
                            raise _broken(
                                method, f"it returns at most {limit.rows} rows", f"{len(read)}: {piece!r}"
                            )
                        rows += read
                    if not pieces:
                        break
                else:
                    raise _broken(method, rule, f"no end with {limit}")
            self._compare(rows, self._expected, f"{_name(method[0])}.advance", f"{rule}, here with {limit}")

    def _refuses(self, harness: SourceHarness[Any, Any], limit: ReadLimit) -> bool:
        """Return True for a limit by bytes of a service that does not say how many it has."""
        try:
            harness.enumerator.advance(harness.pending[0], limit)
        except Exception as error:
            return limit.nbytes is not None and isinstance(error, ValueError)
        return False

    def _check_again(self, harness: SourceHarness[Any, Any], split: object, limit: ReadLimit) -> None:
        first, second = harness.enumerator.advance(split, limit), harness.enumerator.advance(split, limit)
        method, rule = (harness.enumerator, "advance"), "asked again it says the same"
        _require(first == second, method, rule, (first, second))

    # -- the split reader, called as a fetcher calls it ----------------------------------------------

    def _wake_ups(self, rule: str) -> None:
        for split in self._found:
            with self._split_reader(self.make()) as reader:
                reader.handle_splits_changes(SplitsAdded((split,)))
                rows, finished, deadline = list[Any](), False, time.monotonic() + self.timeout
                while not finished:
                    reader.wake_up()
                    for fetched in self._fetch(reader):
                        rows += rows_of(fetched.records)
                        finished = fetched.finished
                    if time.monotonic() > deadline:
                        raise _broken((reader, "fetch"), rule, f"no end of {split!r} in {self.timeout:g} s")
            self._compare(rows, _rows(self._read(split)), f"{_name(reader)}.wake_up", rule, ordered=True)

    def _idle(self, rule: str) -> None:
        with self._idle_split_reader() as reader:
            self._check_idle(reader, rule)

    def _check_idle(self, reader: SplitReader[Any], rule: str) -> None:
        # On a machine with too much to do a fetch that spins may take long for once.
        for _ in range(IDLE_ROUNDS):
            began = time.monotonic()
            for _ in range(IDLE_FETCHES):
                if time.monotonic() - began < MIN_IDLE_S:
                    self._fetch(reader)
            if (took := time.monotonic() - began) < MIN_IDLE_S:
                raise _broken((reader, "fetch"), rule, f"{took:.3f} s")

    def _blocked_fetch(self, rule: str) -> None:
        with self._idle_split_reader() as reader:
            for wait in (0.0, 0.2):
                timer = threading.Timer(wait, reader.wake_up)
                timer.start()
                if not wait:
                    timer.join()
                began = time.monotonic()
                self._fetch(reader)
                took = time.monotonic() - began
                timer.join()
                if took > wait + self.wake_within:
                    raise _broken((reader, "wake_up"), rule, f"it went on for {took - wait:.1f} s")
            # Woken once, it waits again.
            self._check_idle(reader, RULES["idle"])

    # -- a source without an end, and ends -----------------------------------------------------------

    def _new_rows(self, rule: str) -> None:
        follow, add = _needs("follow", self.follow), _needs("add", self.add)
        with SourceHarness(follow(), readers=2, timeout=self.timeout) as harness:
            self._read_what_is_there(harness)
            added = add()
            self._compare(self._told(partial(harness.read, len(added))), added, self._method, rule)
            if harness.ended:
                raise _broken((harness.source, "boundedness"), "a source without an end goes on", "its end")
            snapshot, added = harness.snapshot(), add()
        with SourceHarness(follow(), snapshot=snapshot, timeout=self.timeout) as harness:
            rows = self._told(partial(harness.read, len(added))) + self._drain(harness)
            self._compare(rows, added, self._method, rule)

    def _new_ranges(self, rule: str) -> None:
        follow, add = _needs("follow", self.follow), _needs("add", self.add)
        for limit in (ReadLimit(rows=7), ReadLimit()):
            with SourceHarness(follow(), timeout=self.timeout) as harness:
                self._plan_all(harness, limit, rule)
                added = add()
                pieces = self._plan_all(harness, limit, rule)
                rows = [row for piece in pieces for row in self._told(partial(harness.read_split, piece))]
                self._compare(
                    rows, added, f"{_name(harness.enumerator)}.advance", f"{rule}, here with {limit}"
                )

    def _plan_all(self, harness: SourceHarness[Any, Any], limit: ReadLimit, rule: str) -> list[Any]:
        found, deadline = list[Any](), time.monotonic() + self.timeout
        while pieces := self._told(partial(harness.plan, limit)):
            found += pieces
            if time.monotonic() > deadline:
                what = f"a micro-batch still has {pieces[-1]!r} after {self.timeout:g} s without new rows"
                raise _broken((harness.enumerator, "advance"), f"{rule}, here with {limit}", what)
        return found

    def _close(self, rule: str) -> None:
        before = 0
        for turn in range(6):
            for make in filter(None, (self.make, self.follow)):
                with SourceHarness(make(), readers=2, timeout=self.timeout) as harness:
                    harness.step()
                    began = time.monotonic()
                    for close in (*(r.close for r in harness.readers.values()), harness.enumerator.close) * 2:
                        self._told(close)
                    if (took := time.monotonic() - began) > 2 * self.wake_within:
                        raise _broken((harness.source, "create_reader"), rule, f"close took {took:.1f} s")
            # The first turn opens what is shared.
            before = before if turn else _open_files()
        if (leaked := _open_files() - before) >= 5:
            raise _broken((self.make(), "create_reader"), rule, f"{leaked} more files are open after 5 runs")

    def _bad_rows(self, rule: str) -> None:
        make, text = _needs("bad", self.bad)
        try:
            with SourceHarness(make(), timeout=self.timeout) as harness:
                rows = harness.read_all()
        except Exception as error:
            if text not in str(error):
                raise _broken(self._method, rule, f"{error!r} without {text!r}") from error
        else:
            raise _broken(self._method, rule, f"{len(rows)} rows, and nothing was raised for {text!r}")

    def _lost_data(self, rule: str) -> None:
        lose = _needs("lose", self.lose)
        with SourceHarness((self.lost or self.make)(), timeout=self.timeout) as harness:
            splits = self._discover(harness)
            rows = [len(harness.read_split(split)) for split in splits]
            lose()
            for split, count in zip(splits, rows, strict=True):
                try:
                    found = len(harness.read_split(split))
                except Exception as error:
                    if split.split_id not in str(error):
                        raise _broken(self._method, rule, repr(error)) from error
                    return
                if found < count:
                    raise _broken(
                        self._method, rule, f"{found} rows of {count} in {split!r}, and nothing was raised"
                    )
        raise _broken(self._method, rule, "all rows: does `lose` take them away?")

    # -- what the checks share -----------------------------------------------------------------------

    @cached_property
    def _found(self) -> list[Any]:
        with SourceHarness(self.make(), timeout=self.timeout) as harness:
            if found := self._discover(harness):
                return found
        raise _broken(self._method, "`make` gives a source with splits", "none")

    @cached_property
    def _expected(self) -> Sequence[Any]:
        return self._read_all(self.make()) if self.rows is None else [*self.rows]

    @cached_property
    def _method(self) -> str:
        """The method whose rows are looked at: that of the split reader, where there is one."""
        try:
            with closing(self.make().create_reader(ReaderContext())) as reader:
                if not isinstance(reader, FetchingReader):
                    return f"{_name(reader)}.poll"
                with closing(reader.make_split_reader()) as split_reader:
                    return f"{_name(split_reader)}.fetch"
        except Exception as error:
            rule = "it makes a reader, and that a split reader, without asking the service"
            raise ContractBroken(f"{_name(self.make())}.create_reader", rule, repr(error)) from error

    @cached_property
    def _enumerator(self) -> Any:
        with SourceHarness(self.make()) as harness:
            return harness.enumerator

    @cached_property
    def _kept(self) -> dict[str, list[Fetched]]:
        return {}

    def _read(self, split: Split) -> list[Fetched]:
        """All that is fetched of a split that was found: the first time, as others are compared with it."""
        if split.split_id not in self._kept:
            self._kept[split.split_id] = self._read_anew(split, ReaderContext())
        return self._kept[split.split_id]

    def _read_anew(self, split: object, context: ReaderContext) -> list[Fetched]:
        kept, rows = list[Fetched](), list[Any]()

        def read() -> None:
            for fetched in read_splits(self.make().create_reader(context), [split]):
                kept.append(fetched)
                rows.extend(rows_of(fetched.records))

        self._told(read)
        self._compare(_rows(kept), rows, self._method, "what was handed out changes no more", ordered=True)
        return kept

    def _read_all(self, source: Source[Any, Any], readers: int = 1, snapshot: object = None) -> list[Any]:
        with SourceHarness(source, readers=readers, snapshot=snapshot, timeout=self.timeout) as harness:
            return list(self._told(harness.read_all))

    def _told(self, act: Callable[[], Any]) -> Any:
        """Call `act`; an error of it is the connector's."""
        try:
            return act()
        except ContractBroken:
            raise
        except TimeoutError as error:
            rule = "rows come, and a split that has an end is finished at some time"
            raise ContractBroken(self._method, rule, str(error)) from error
        except Exception as error:
            rule = "what is there can be read"
            raise ContractBroken(self._method, rule, f"{type(error).__name__}: {error}") from error

    def _check_range(self, source: Source[Any, Any], split: object, rows: Sequence[Any], rule: str) -> None:
        """Read a range as it comes out of a checkpoint."""
        serializer = source.split_serializer
        piece = serializer.from_json(serializer.version, json.loads(json.dumps(serializer.to_json(split))))
        with SourceHarness(source, timeout=self.timeout) as harness:
            found = self._told(partial(harness.read_split, piece))
        self._compare(found, rows, self._method, f"{rule}, here {split!r}", ordered=True)

    @staticmethod
    def _compare(
        rows: Sequence[Any], due: Sequence[Any], method: str, rule: str, *, ordered: bool = False
    ) -> None:
        found, wanted = [*map(identity, rows)], [*map(identity, due)]
        missing, extra = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        if missing or extra or (ordered and found != wanted):
            what = f"{len(found)} rows for {len(wanted)}"
            shown = {known: repr(row) for row, known in zip((*due, *rows), (*wanted, *found), strict=True)}
            for kind, some in (("missing", missing), ("too many", extra)):
                what += f"; {kind}: {', '.join([shown[known] for known in some][:3])}" * bool(some)
            raise ContractBroken(method, rule, what if missing or extra else f"{what}; in another order")

    def _discover(self, harness: SourceHarness[Any, Any]) -> list[Any]:
        for _ in range(MAX_SPLITS):
            if not self._told(harness.discover):
                return list(harness.pending)
        raise _broken(
            (harness.enumerator, "discover"), RULES["discovery"], f"{len(harness.pending)} splits, and more"
        )

    # A clock cannot tell that all has been read: on a busy machine the next rows come at any later time.
    def _read_what_is_there(self, harness: SourceHarness[Any, Any]) -> None:
        """Have a harness of `follow` read all rows that there are, and the splits that have an end to it."""
        with SourceHarness(_needs("follow", self.follow)(), timeout=self.timeout) as other:
            pieces = self._plan_all(other, ReadLimit(), RULES["new_ranges"])
            there = sum(len(self._told(partial(other.read_split, piece))) for piece in pieces)

        def is_read() -> bool:
            held = [split for reader in harness.readers.values() for split in reader.splits()]
            return len(harness.rows) >= there and all(
                split.stop is None for split in (*held, *harness.pending)
            )

        self._told(partial(harness.read_until, is_read))
        self._drain(harness)

    def _drain(self, harness: SourceHarness[Any, Any]) -> list[Any]:
        """Read what comes until nothing has come for a while: of what was read, nothing should come again."""
        before = len(harness.rows)
        deadline = time.monotonic() + DRAINED_AFTER_S if before else time.monotonic() + self.timeout
        while time.monotonic() < deadline:
            if self._told(harness.step):
                deadline = time.monotonic() + DRAINED_AFTER_S
            else:
                self._told(partial(harness.wait, 0.05))
        return harness.rows[before:]

    @contextmanager
    def _split_reader(self, source: Source[Any, Any]) -> Iterator[SplitReader[Any]]:
        with closing(source.create_reader(ReaderContext())) as reader:
            if not isinstance(reader, FetchingReader):
                raise unittest.SkipTest("its reader has no SplitReader")
        with closing(reader.make_split_reader()) as split_reader:
            yield split_reader

    @contextmanager
    def _idle_split_reader(self) -> Iterator[SplitReader[Any]]:
        """A split reader that has read all that there is of a source without an end."""
        source = _needs("follow", self.follow)()
        with SourceHarness(source, timeout=self.timeout) as harness:
            self._read_what_is_there(harness)
            stands = [split for reader in harness.readers.values() for split in reader.splits()]
        if not stands:
            raise unittest.SkipTest("all its splits have ends")
        with self._split_reader(source) as reader:
            reader.handle_splits_changes(SplitsAdded(tuple(stands if _reads_many(source) else stands[:1])))
            # Its first fetches may find out where it stands.
            for _ in range(5):
                began = time.monotonic()
                if rows := _rows(self._fetch(reader)):
                    raise _broken((reader, "fetch"), "what was read does not come again", repr(rows[:3]))
                if time.monotonic() - began > MIN_IDLE_S:
                    break
            yield reader

    def _fetch(self, reader: SplitReader[Any]) -> Sequence[Fetched]:
        # One that waits for what never comes is woken, and the check goes on to say so.
        alarm = threading.Timer(self.timeout, reader.wake_up)
        alarm.start()
        try:
            fetched = self._told(reader.fetch)
        finally:
            alarm.cancel()
            alarm.join()
        if not isinstance(fetched, Sequence) or not all(isinstance(each, Fetched) for each in fetched):
            raise _broken((reader, "fetch"), "it returns a list of Fetched", repr(fetched))
        return fetched


def source_suite(
    make: Callable[[], Source[Any, Any]], *, name: str = "SourceChecks", **arguments: Any
) -> Any:
    """Make a test case, for unittest and pytest, with a test for each of `RULES`.

        >>> import unittest
        >>> from pillarbox.sources.connectors.generator import GeneratorSource
        >>> from pillarbox.testing import source_suite
        >>> TestGenerator = source_suite(lambda: GeneratorSource(60, splits=3, batch_rows=6))
        >>> issubclass(TestGenerator, unittest.TestCase), hasattr(TestGenerator, "test_positions")
        (True, True)

    make: a function that returns a new source. name: of the test case. arguments: those of `SourceSuite`. A
    failing test raises `ContractBroken`, whose text names class, method and rule.
    """
    suite = SourceSuite(make, **arguments)

    def test(check: str) -> Callable[[unittest.TestCase], None]:
        return lambda self: suite.check(check)

    return type(name, (unittest.TestCase,), {f"test_{check}": test(check) for check in RULES})


def _poll(harness: SourceHarness[Any, Any], polls: int) -> None:
    """So many polls that give something; now and then a reader dies."""
    for poll in range(polls):
        before = len(harness.fetched)
        harness.read_until(lambda before=before: len(harness.fetched) > before)  # type: ignore[misc]
        if poll % 3 == 1 and not harness.ended:
            harness.restart_reader(0)


def _reads_many(source: Source[Any, Any]) -> bool:
    """Return True if one reader reads several splits at the same time."""
    with closing(source.create_reader(ReaderContext())) as reader:
        return isinstance(reader, FetchingReader) and reader.threading is Threading.MANY_SPLITS


def _needs(name: str, argument: object) -> Any:
    if not argument:
        raise unittest.SkipTest(f"{name}= was not given")
    return argument


def _rows(fetched: Iterable[Fetched]) -> list[Any]:
    return [row for each in fetched for row in rows_of(each.records)]


def _in_order(fetched: Fetched, names: Sequence[str]) -> list[Any]:
    records: Any = fetched.records
    return rows_of(records.select(list(names)) if hasattr(records, "schema") else records)


def _places(fetched: Sequence[Fetched]) -> list[tuple[int, Any]]:
    """The positions in a split, each with the rows up to it: all, or of very many some."""
    counts, count = list[tuple[int, Any]](), 0
    for each in fetched[:-1]:
        count += len(each.records)
        counts.append((count, each.position))
    return counts[:: 1 + len(counts) // MAX_PREFIXES]


def _name(thing: object) -> str:
    return thing.__name__ if isinstance(thing, type) else type(thing).__name__


def _require(holds: object, method: str | tuple[Any, str], rule: str, found: object) -> None:
    if not holds:
        raise _broken(method, rule, found if isinstance(found, str) else repr(found))


def _broken(method: str | tuple[Any, str], rule: str, found: str) -> ContractBroken:
    named = method if isinstance(method, str) else f"{_name(method[0])}.{method[1]}"
    return ContractBroken(named, rule, found)


def _open_files() -> int:
    """Files and connections of this process; 0 where the system does not tell."""
    gc.collect()
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
