"""`Ledger`: where finished calls are kept, and how. A value that pickles: any thread, any process.

The idea is that of durable execution (Temporal, Azure's Durable Functions, DBOS): keep what a step gave
before anything that depends on it is seen, and on a replay give it back instead of doing the step again.
"""

# A ledger is the name of a place, not something open: tasks get it pickled, and each opens what it needs. So
# each machine has to ask anew whether it is the same place. A path such as /data/ledger is on every worker,
# and need not be shared: then each task would find an empty ledger, and all calls would be paid for twice
# without an error. To compare mounts needs knowledge of every file system, and a time that is written and
# read fails with clocks. So the driver leaves a file with a random name there, and a worker that does not
# find that name refuses. Two drivers that come at once may leave two: each worker asks for its driver's only.
#
# Why the names of operator, run and key are fields here and not options beside it. None of them has a meaning
# without a ledger, and a ledger without them finds nothing again: as options, half of the checks were about
# which may stand beside which (docs/decisions/public-names.md).

from __future__ import annotations

import json
import math
import os
import pickle
import re
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from typing import Any
from urllib.parse import unquote, urlsplit

from pillarbox.ledger.errors import LedgerError, LedgerFormatError
from pillarbox.ledger.folders import Folder
from pillarbox.ledger.format import VERSION, add_time
from pillarbox.ledger.keys import KeyMaker, Scope, execution_id, quoted
from pillarbox.ledger.lease import HUNG_AFTER_S, STALLED_AFTER_S, Lease
from pillarbox.ledger.local_folder import LocalFolder, Segment, by_age
from pillarbox.ledger.private_files import FILE_MODE, check_mode, expand_home
from pillarbox.ledger.reader import LedgerReader
from pillarbox.ledger.writer import WRITER_LIMITS, Commit, LedgerWriter, WriterLimits
from pillarbox.providers import BEGIN_EXECUTION, OBJECT_FOLDER, check_provided, provided
from pillarbox.redaction import UNESCAPED, is_misread, reason_of, shown_address
from pillarbox.validate import (
    check_bool,
    check_duration,
    check_int,
    check_limit_of_time,
    check_positive_int,
    naming_arguments,
)

SCHEMES = ("file", "s3", "hdfs", "viewfs", "gs", "gcs", "abfs", "abfss")
MAX_COMMIT_ROWS = 2**20
MAX_COMMIT_BYTES = 2**30
IDENTITY_FOLDER = ".identity"
"""Below the location: a file for each name by which it is known to be the same place on every machine."""
CACHE_RUN = "~cache"
"""The run of what a cache has: none that a user may name."""
CUT_STEPS = 20
"""A stream's cut moves on by this part of `max_age`: with each step its tasks read the cache anew."""
MERGED_BYTES = 64 * 2**20
"""Bytes of a segment that is merged with others no more, about."""
SIZE_SHARE = 8
"""A merged segment has no more than this part of `max_bytes`."""
US = 1_000_000
"""Microseconds in a second: the unit of cuts, and of the times of records."""


@dataclass(frozen=True)
class Cache:
    """Limits of a ledger whose results are found by content.

    max_age: seconds after which a result no longer counts; None for no limit.
    max_bytes: bytes kept of one operator, approximately; the oldest are removed first. None for no limit.

        >>> from pillarbox.ledger import Cache, Ledger
        >>> month = Cache(max_age=30 * 86_400, max_bytes=10 * 2**30)
        >>> kept = Ledger("cache", uid="embed-v1", cache=month)

    Both are applied when a job begins. A value; any thread may use it. Raises TypeError or ValueError that
    names the argument, its value and the allowed values.
    """

    _: KW_ONLY
    max_age: float | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        check_provided(BEGIN_EXECUTION, "cache")
        check_limit_of_time("max_age", self.max_age)
        if self.max_bytes is not None:
            check_positive_int("max_bytes", self.max_bytes)

    @property
    def merged_bytes(self) -> int:
        """The bytes of a segment that is merged with others no more."""
        return MERGED_BYTES if self.max_bytes is None else min(MERGED_BYTES, self.max_bytes // SIZE_SHARE)

    def cut(self, segments: list[Segment], now: float) -> int:
        """The time before which records are too old, in microseconds since 1970; now: seconds since then."""
        cut = 0 if self.max_age is None else int((now - self.max_age) * US)
        if self.max_bytes is not None:
            left = self.max_bytes
            for segment in sorted(segments, key=by_age, reverse=True):
                left -= segment.size
                if left < 0:
                    return max(cut, int(segment.changed * US) + 1)
        return cut

    def cut_by_age(self, now: float) -> int:
        """The cut of a stream, by age alone: it moves on by steps."""
        if self.max_age is None:
            return 0
        step = max(1, int(self.max_age * US / CUT_STEPS))
        return -(int((self.max_age - now) * US) // step) * step


@naming_arguments
@dataclass(frozen=True)
class Ledger:
    """Store of finished calls: a restart does not repeat a call whose result it has.

    location: a path of a local or shared file system, or a URL: `file://`, `s3://`, `hdfs://`, and others
        that `pyarrow.fs` knows. Files can be locked and synced; in an object store each commit is an object.
        `~` is the home folder of the process that makes the `Ledger`, the driver.
    loss_window: seconds. After a kill, at most the calls that finished in the last such period are repeated.
    commit_rows, commit_bytes: a commit is made at once for this many rows or bytes; how many bytes results of
        calls take is known by those of the commit before.
    retry_errors: a replay repeats the calls of rows that failed for good; False replays their errors.
    uid: the operator's name, to be changed with the function's behaviour. Operators of one run have different
        names, so in a chain each `Step` has its own.
    run: the name of the work that may be run again. None in a streaming query, which has its own names.
    key: the names of the columns that identify a row (omit it if a row is one value); None for the whole row,
        where equal rows are counted. A row whose key is null is identified by its content.
    version: of the function, a number or a name: results of another version are not used.
    inputs: the columns, besides those of the key, on which the result depends; None for all. A row whose
        input differs from its record is called again.
    filesystem: a `pyarrow.fs.FileSystem` in which `location` is a path: for credentials and other settings.
    mode: of files in a local folder that users share, such as 0o660; its readers may also enter the folders.
        None for 0600, and folders 0700; an existing ledger keeps its permissions.
    cache: find results by content, across jobs and days: by the client's configuration and the row's
        `inputs`. True, or a `Cache` with limits of age and size; it has neither `run` nor `key`, and equal
        rows share a call.
    exclusive: in an object store, which has no locks, one job at a time works on a named run; a second one is
        refused with the name of the first. False for jobs without a row in common, or a store without
        conditional writes.

        >>> from pillarbox import Ledger, async_map
        >>> called = []
        >>> async def call(row):
        ...     called.append(row)
        ...     return row.upper()
        >>> kept = Ledger("calls", uid="upper-v1", run="2026-11-21")
        >>> list(async_map(["a", "b"], call, ledger=kept))
        ['A', 'B']
        >>> list(async_map(["a", "b", "c"], call, ledger=kept)), called
        (['A', 'B', 'C'], ['a', 'b', 'c'])

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    location: str
    loss_window: float = 0.2
    commit_rows: int = 1024
    commit_bytes: int = 2**20
    retry_errors: bool = True
    uid: str | None = field(default=None, kw_only=True)
    run: str | None = field(default=None, kw_only=True)
    key: Sequence[str | int] | None = field(default=None, kw_only=True)
    version: int | str | None = field(default=None, kw_only=True)
    inputs: Sequence[str | int] | None = field(default=None, kw_only=True)
    filesystem: Any = field(default=None, repr=False, kw_only=True)
    mode: int | None = field(default=None, kw_only=True)
    cache: bool | Cache | None = field(default=None, kw_only=True)
    exclusive: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        location = self.location
        if isinstance(location, os.PathLike):
            location = os.fspath(location)
        if not isinstance(location, str):
            raise TypeError(
                f"location={shown_address(repr(location))}: must be a path or a URL, "
                f"not {type(location).__name__}"
            )
        if not location:
            raise ValueError("location='': must be a path or a URL")
        scheme = _scheme(location)
        # With one slash only `file:/x` is a place. `s3:/x` would be a folder `s3:` below the current one.
        slashes = "//" if scheme is None or location.startswith("://", len(scheme)) else "/"
        is_place = scheme in SCHEMES and (slashes == "//" or scheme == "file")
        if scheme is not None and not is_place and self.filesystem is None:
            shown = shown_address(location.replace(":" + slashes, "://", 1)).replace("://", ":" + slashes, 1)
            raise ValueError(
                f"location={shown!r}: the scheme {scheme}:{slashes} is not one of "
                + ", ".join(f"{known}://" for known in SCHEMES)
            )
        # Relative to the driver's folder, not to that of whatever worker opens it.
        if scheme is None and self.filesystem is None:
            location = os.path.abspath(expand_home("location", location))
        if scheme == "file" and self.filesystem is None and urlsplit(location).netloc.startswith("~"):
            # What follows `//` is a host, and not a part of the path.
            raise ValueError(
                f"location={location!r}: a URL has no '~': write {location.partition('://')[2]!r}, or "
                "file:/// and the whole path"
            )
        object.__setattr__(self, "location", location)
        object.__setattr__(
            self, "loss_window", check_duration("loss_window", self.loss_window, above_zero=True)
        )
        check_int("commit_rows", self.commit_rows, 1, MAX_COMMIT_ROWS)
        check_int("commit_bytes", self.commit_bytes, 1, MAX_COMMIT_BYTES)
        check_bool("retry_errors", self.retry_errors)
        check_bool("exclusive", self.exclusive)
        Scope("run" if self.run is None else self.run, "uid" if self.uid is None else self.uid)
        self._check_cache()
        self._check_function_version()
        self._check_columns("key")
        if self.inputs == () or self.inputs == []:
            raise ValueError(f"inputs={self.inputs!r}: must name a column, or be None for all")
        self._check_columns("inputs")
        self._check_filesystem()
        path = self.local_path
        if path is None:
            check_provided(OBJECT_FOLDER, f"location={shown_address(self.location)!r}")
        if check_mode(self.mode) is not None and path is None:
            raise ValueError(
                f"mode={self.mode:#o}: is for a local folder; an object store has its own permissions"
            )
        if path is not None and os.path.exists(path) and not os.path.isdir(path):
            raise ValueError(f"location={shown_address(self.location)!r}: is a file, and must be a folder")

    def _check_cache(self) -> None:
        cache = self.cache
        if not isinstance(cache, bool | Cache) and cache is not None:
            raise TypeError(f"cache={cache!r}: must be True, False or a Cache, not {type(cache).__name__}")
        object.__setattr__(self, "cache", Cache() if cache is True else cache or None)
        if self.run == CACHE_RUN:
            raise ValueError(f"run={self.run!r}: is the name of what caches have; give the run another one")
        if self.cache is None:
            return
        for name, instead in (
            ("run", "its results are those of all runs; leave run out, or leave out cache"),
            ("key", "a row is known by what the function gets of it; name the columns that count as inputs"),
        ):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}={getattr(self, name)!r}: is not for a cache: {instead}")

    def _check_function_version(self) -> None:
        version = self.version
        if version is not None and (isinstance(version, bool) or not isinstance(version, int | str)):
            raise TypeError(f"version={version!r}: must be an int, a str or None")
        if version == "":
            raise ValueError("version='': must not be empty; None for a function without versions")

    def _check_columns(self, name: str) -> None:
        columns = getattr(self, name)
        if columns is None:
            return
        try:
            KeyMaker(columns)
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace("columns=", f"{name}=", 1)) from None
        object.__setattr__(self, name, tuple(columns))

    def _check_filesystem(self) -> None:
        if self.filesystem is None:
            return
        from pyarrow import fs

        if not isinstance(self.filesystem, fs.FileSystem):
            raise TypeError(
                "filesystem=...: must be a pyarrow.fs.FileSystem or None, "
                f"not {type(self.filesystem).__name__}"
            )
        try:
            pickle.dumps(self.filesystem)
        except Exception as error:
            raise TypeError(f"filesystem=...: cannot be sent to workers: {error}") from error

    def __repr__(self) -> str:
        cache = "" if self.cache is None else f", cache={self.cache!r}"
        cache += "" if self.exclusive else ", exclusive=False"
        names = "".join(
            f", {name}={value!r}"
            for name, value in (("uid", self.uid), ("run", self.run), ("key", self.key))
            if value is not None
        )
        return (
            f"Ledger({shown_address(self.location)!r}{names}, loss_window={self.loss_window!r}, "
            f"commit_rows={self.commit_rows!r}, commit_bytes={self.commit_bytes!r}, "
            f"retry_errors={self.retry_errors!r}, version={self.version!r}, "
            f"inputs={self.inputs!r}{cache}{'' if self.mode is None else f', mode={self.mode:#o}'})"
        )

    @property
    def run_name(self) -> str | None:
        """The run whose results these are, that of all caches included; None where a stream has its own."""
        return self.run if self.cache is None else CACHE_RUN

    @property
    def cache_limits(self) -> Cache:
        """The limits of a ledger that is a cache."""
        return self.cache if isinstance(self.cache, Cache) else Cache()

    @property
    def local_path(self) -> str | None:
        """The folder on a file system of the machine; None for an object store."""
        if self.filesystem is not None:
            return None
        scheme = _scheme(self.location)
        if scheme is None:
            return self.location
        return unquote(urlsplit(self.location).path) if scheme == "file" else None

    def root(self) -> Folder:
        """The folder of all scopes, whether it is there or not. Any thread. Raises LedgerError."""
        return self._at(f"v{VERSION}")

    def folder(self, scope: Scope) -> Folder:
        """The folder of a scope, whether it is there or not. Any thread. Raises LedgerError."""
        return self._at(f"v{VERSION}", *scope.path.split("/"))

    def _at(self, *names: str) -> Folder:
        path = self.local_path
        if path is not None:
            return LocalFolder(os.path.join(path, *names), self._file_mode(path))
        filesystem, base = self.opened()
        folder: Folder = provided(OBJECT_FOLDER, "location")(filesystem, "/".join((base, *names)))
        return folder

    def reader(self, scope: Scope, *, since: int = 0, only: Mapping[str, int] | None = None) -> LedgerReader:
        """Return a reader of the finished calls of a scope, as they are now. Any thread.

        since: microseconds since 1970; older ones are not found. only: the segments to read, with
        the bytes of each; None for all.
        Raises LedgerFormatError for a ledger of another version, LedgerError and OSError.
        """
        self._check_version()
        return LedgerReader(
            self.folder(scope),
            scope,
            accepts_errors=not self.retry_errors,
            version=self.kept_version,
            some_inputs=self.inputs is not None,
            only=only,
            since=since,
            newest=scope.run == CACHE_RUN,
        )

    @property
    def kept_version(self) -> str:
        """The version in the form in which a record says it."""
        return "" if self.version is None else json.dumps(self.version)

    def writer(
        self,
        scope: Scope,
        reader: LedgerReader | None = None,
        *,
        execution: bytes | None = None,
        one_input: bool = True,
        on_commit: Callable[[Commit], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        limits: WriterLimits = WRITER_LIMITS,
    ) -> LedgerWriter:
        """Return a writer of a task attempt's finished calls, on its own thread until closed. Any thread.

        reader: of the same scope, whose index it keeps up to date; None for a new one.
        execution: the result of `execution_id` for the execution of this task; None for a new one.
        one_input: two rows of the execution with one key and different inputs are an error.
        on_commit, on_failure: called on the writer's thread, and must not wait. limits: times and sizes.
        """
        return LedgerWriter(
            self.folder(scope),
            scope,
            self.reader(scope) if reader is None else reader,
            loss_window=self.loss_window,
            commit_rows=self.commit_rows,
            commit_bytes=self.commit_bytes,
            execution=execution_id() if execution is None else execution,
            one_input=one_input,
            on_commit=on_commit,
            on_failure=on_failure,
            limits=limits,
        )

    def lease(
        self,
        scope: Scope,
        name: str,
        *,
        stalled_after: float = STALLED_AFTER_S,
        hung_after: float = HUNG_AFTER_S,
    ) -> Lease | None:
        """Return the lease of the thing called `name`, such as a task's first key; None without leases."""
        folder = self.folder(scope)
        if not isinstance(folder, LocalFolder):
            return None
        if not folder.exists():
            folder.make()
        return Lease(folder.path, name, stalled_after=stalled_after, hung_after=hung_after, mode=folder.mode)

    @property
    def holds_runs(self) -> bool:
        """True if a job has to hold its run: one with a name, where there are no locks."""
        return self.exclusive and self.local_path is None and self.cache is None and self.run is not None

    def scopes(self, run: str | None = None) -> Iterator[Scope]:
        """Return every scope of the ledger, or of a run, sorted. Any thread.

        Raises LedgerError and OSError.
        """
        self._check_version()
        above = [] if run is None else [f"run={quoted(run)}"]
        paths = ["/".join([*above, leaf]) for leaf in self._at(f"v{VERSION}", *above).leaves()]
        yield from sorted(
            {scope for path in paths if (scope := Scope.from_path(path)) is not None},
            key=lambda scope: (
                scope.run,
                -1 if scope.batch is None else scope.batch,
                scope.uid,
                scope.config,
            ),
        )

    def spent(self, run: str, uid: str) -> tuple[int, float]:
        """Return attempts and cost of all records of an operator's run, failures included. Any thread.

        Reads all of them. Raises LedgerError and OSError.
        """
        attempts, cost = 0, 0.0
        for scope in self.scopes(run):
            if scope.uid == uid:
                spent = self.reader(scope).spent()
                attempts, cost = attempts + spent[0], cost + spent[1]
        return attempts, cost

    def seconds_spent(self, run: str, uid: str) -> float:
        """Return the seconds of an operator's run in which an execution of it was under way. Any thread.

        An execution lasts from its first call to its last result, as far as they are kept. Reads all records.
        Raises LedgerError and OSError.
        """
        times: dict[bytes, tuple[float, float]] = {}
        for scope in self.scopes(run):
            if scope.uid == uid:
                for execution, time in self.reader(scope).times().items():
                    add_time(times, execution, time)
        # Of executions side by side each moment counts once.
        seconds, until = 0.0, -math.inf
        for begin, end in sorted(times.values()):
            seconds += max(0.0, end - max(begin, until))
            until = max(until, end)
        return seconds

    def check(self) -> None:
        """Raise LedgerError if nothing can be written there. Makes the folder. Any thread; for the driver."""
        self._check_version()
        self._at(f"v{VERSION}").check_writable()

    def _file_mode(self, path: str) -> int:
        """The mode of new files: what was said, or the mode of the ledger that is there, or 0600."""
        if self.mode is not None:
            return self.mode
        try:
            return os.stat(os.path.join(path, f"v{VERSION}")).st_mode & 0o666 | FILE_MODE
        except OSError:
            # Not there yet. Or it may not be looked at: whoever tries to is told so.
            return FILE_MODE

    def identity(self) -> str:
        """The name of this very place, which every machine that sees it finds; made where there is none.

        Any thread, any process, several at a time: one that comes second by a moment makes a name of its own,
        and both are found. Raises LedgerError and OSError.
        """
        names = self._at(IDENTITY_FOLDER).names()
        if names:
            return min(names)
        name = secrets.token_hex(8)
        folder = self._at(IDENTITY_FOLDER)
        folder.make()
        folder.put(name, b"")
        return name

    def check_identity(self, identity: str) -> None:
        """Raise LedgerError unless this machine sees the place that `identity` is the name of. Any thread."""
        folder = self._at(IDENTITY_FOLDER)
        if identity not in folder.names():
            raise LedgerError(
                f"location={shown_address(self.location)!r}: on {socket.gethostname()} this is not the place "
                f"that the driver saw, whose mark {identity} is missing. Either each machine has a disk of "
                "its own under this path, so that each would pay for calls that another has made: give a "
                "folder that the driver and all workers share, or a bucket. Or it was deleted after the "
                "driver had planned the job: plan it again"
            )

    def opened(self) -> tuple[Any, str]:
        """The file system of an object store, and the folder of the ledger there. Raises LedgerError."""
        from pyarrow import fs

        if self.filesystem is not None:
            return self.filesystem, self.location.rstrip("/")
        try:
            filesystem, base = fs.FileSystem.from_uri(self.location)
        except (OSError, ValueError) as error:
            raise LedgerError(self._unopened(reason_of(error, self.location))) from None
        if is_misread(self.location):
            raise LedgerError(self._unopened("a part of the secret would be taken for a bucket"))
        return filesystem, str(base).rstrip("/")

    def _unopened(self, reason: str) -> str:
        hint = f"; {UNESCAPED}" if is_misread(self.location) else ""
        return f"{shown_address(self.location)} cannot be opened: {reason}{hint}"

    def _check_version(self) -> None:
        others = {name for name in self._at().names() if re.fullmatch(r"v\d+", name)} - {f"v{VERSION}"}
        if others:
            raise LedgerFormatError(
                f"{shown_address(self.location)} has been written in another version of the format "
                f"({', '.join(sorted(others))}), and this Pillarbox knows version {VERSION}: use another "
                "location, or the Pillarbox that has written it"
            )


def _scheme(location: str) -> str | None:
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", location)
    return None if match is None else match[1].lower()


MAX_IDLE_READERS = 4
"""Readers that are kept although nobody uses them, at most."""
MAX_IDLE_RECORDS = 10_000_000
"""Records of which they know, at most, except the one that was asked for last; 16 bytes each and more."""


# A scan of millions of records takes seconds, and a worker runs task after task over the same ones. Readers
# in use are held weakly, whatever their number: a bounded cache alone would read the fifth scope in use
# twice. A few are held strongly besides, as between two tasks nobody uses them; by number and by size, or
# four ledgers of ten million records would stay in a worker that calls for something else by now.
class _ReaderCache:
    """Readers in use, and some that nobody uses, for the next task of this process: it need not scan anew."""

    def __init__(self, max_idle_records: int = MAX_IDLE_RECORDS) -> None:
        self._max_idle_records = max_idle_records
        self._mutex = threading.Lock()
        self._readers: weakref.WeakValueDictionary[Any, LedgerReader] = weakref.WeakValueDictionary()
        # The one that was asked for last is the first.
        self._idle: list[LedgerReader] = []

    def reader(self, ledger: Ledger, scope: Scope, since: int) -> LedgerReader:
        # What decides how it reads. A file system has no hash.
        ways = ledger.location, ledger.retry_errors, ledger.version, ledger.inputs
        key = *ways, pickle.dumps(ledger.filesystem), scope, since
        with self._mutex:
            reader = self._readers.get(key)
            if reader is None:
                reader = self._readers[key] = ledger.reader(scope, since=since)
            else:
                reader.refresh()
            others = [each for each in self._idle if each is not reader][: MAX_IDLE_READERS - 1]
            # The one that was asked for last is kept whatever its size: it is what the next task asks for.
            sizes = accumulate(map(len, others))
            idle = [each for each, size in zip(others, sizes, strict=True) if size <= self._max_idle_records]
            self._idle = [reader, *idle]
            return reader


_cache = _ReaderCache()
_of_parents: list[_ReaderCache] = []


def shared_reader(ledger: Ledger, scope: Scope, *, since: int = 0) -> LedgerReader:
    """The reader of a scope that this process has, up to date as of now, or a new one. Any thread.

    Others use it at the same time: it must not be closed. Its files are closed when it is let go, by its last
    user and by this cache, which keeps the last `MAX_IDLE_READERS` ones. Raises as `Ledger.reader` does.
    """
    return _cache.reader(ledger, scope, since)


def _begin_anew() -> None:
    global _cache
    # Never let go: a thread that is not there in the fork may have held its locks.
    _of_parents.append(_cache)
    _cache = _ReaderCache()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
