"""The skeleton of sources that read logs: to a log records are added at its end, and they go from its front.

Kafka's topics and the streams of Redis are logs. A log has parts, which are read each in its order: a topic
its partitions, a stream only itself. What all logs have in common stands here: which ones are read and what
becomes of the checkpoint when others are named, where reading starts and ends, how parts are found and
given out, which are let go of; and of reading, which parts are read now, how far, and what is at its end. A
connector says how its service is asked (`find`, `open`, `ahead`; `read`) and what rows look like.

Confined to the threads that `SplitEnumerator` and `SplitReader` name; sources are values, for any thread.
"""

# Why a base class, and not two connectors that look alike. What is hard about a log is the same in each: that
# it may be deleted and made again under its name (`identity`), trimmed at its front before it was read, have
# more parts tomorrow, or be named no longer in a job that goes on from a checkpoint. Written twice, these
# questions would sooner or later be answered in two ways.
#
# Why a split of a log that is no longer named ends where it stands, but a planned range is read to its end:
# the range stands in an offset of Spark's, which must give the same rows whenever it is run again.

from __future__ import annotations

import json
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import pyarrow as pa

from pillarbox.redaction import MASK
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import Fetched, Progress, ReaderContext, SplitReader, SplitsAdded
from pillarbox.sources.source import ON_DATA_LOSS, Boundedness, Source, check_options, option, read_options
from pillarbox.sources.split import DataLossError, Split

log = logging.getLogger("pillarbox")

LOOK_S = 0.05
"""Seconds that a fetch looks for records, about: so it heeds orders that soon, and needs no wake-up."""

Checkpoint = dict[str, Any]
"""of: which logs are read, as `LogSource.selection` says; known: of each log its identity, and how many of
its parts are known; waiting: splits that were not given out, as their fields; begun: whether the first look
is behind, so that parts which come now are new."""


def masked(text: str, secrets: Iterable[Any]) -> str:
    """`text` without these secrets, nor the forms that they have in an address."""
    texts = [each for each in secrets if isinstance(each, str) and each]
    forms = {form for each in texts for form in (each, unquote(each), quote(each, safe=""))}
    # The longest first: one may be a part of another.
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


class Part(NamedTuple):
    """A part of a log. A plain value.

    identity: which log of that name it is: one that was deleted and made again has another. "" where the
    service does not say.
    """

    name: str
    number: int
    identity: str


@dataclass(frozen=True)
class LogSplit(Split):
    """A part of a log from `start` on; a range of it where it has a `stop`."""

    @property
    @abstractmethod
    def part(self) -> Part:
        """The part that it is of."""


S = TypeVar("S", bound=LogSplit)


@dataclass(eq=False, repr=False, kw_only=True)
class LogSource(Source[S, Checkpoint]):
    """The base of sources of logs. Each connector says what its arguments are; these are of all.

    pattern: instead of names; what it finds later is looked for every `discovery_interval` seconds, and read
        from its beginning.
    on_data_loss: what is done about records that were expired, trimmed or deleted before they were read:
        "fail" or "ignore".
    on_change: what is done when a checkpoint is of other logs, or of another pattern: "fail", or "follow",
        which lets go of what is no longer named and reads what is new from its beginning.
    password_env: the name of an environment variable that holds the password; it is read where a client is
        made, on the driver and in tasks, and does not travel.

    Raises TypeError or ValueError for a bad one.
    """

    logs: ClassVar[str]
    """The argument that names the logs."""
    enumerator_type: ClassVar[type[LogEnumerator[Any]]]
    reader_type: ClassVar[type[LogReader[Any, Any]]]

    pattern: str | None = option(None)
    schema: pa.Schema | None = None
    bounded: bool = option(False)
    discovery_interval: float = option(10.0, above=0.0, unit="number of seconds")
    on_data_loss: str = option("fail", one_of=ON_DATA_LOSS)
    on_change: str = option("fail", one_of=("fail", "follow"))
    password_env: str | None = None
    service: Any = field(init=False)
    """The service that has the logs, as each connector sets it; its text shows no secret."""

    def __post_init__(self) -> None:
        check_options(self)
        given, pattern = getattr(self, self.logs), self.pattern
        self.names = () if given is None else (given,) if isinstance(given, str) else tuple(given)
        if (not self.names) == (pattern is None):
            raise ValueError(f"{self.logs}={given!r}, pattern={pattern!r}: give one of them")
        if not all(isinstance(name, str) and name for name in self.names):
            raise TypeError(f"{self.logs}={given!r}: must be names")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"{self.logs}={given!r}: each must be named once")
        if self.schema is not None:
            self.schema = self.check_schema(self.schema)

    def __repr__(self) -> str:
        what = self.pattern if self.pattern is not None else ", ".join(self.names)
        return f"<{self.logs} {what} of {self.service!r}>"

    @abstractmethod
    def default_schema(self) -> pa.Schema:
        """The columns where no schema is given."""

    @abstractmethod
    def check_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of `schema`, as they are read. Raises ValueError that names the column."""

    @abstractmethod
    def matches(self, name: str) -> bool:
        """True if `pattern` finds a log of this name."""

    @property
    def boundedness(self) -> Boundedness:
        """As it was asked for."""
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def selection(self) -> list[str] | str:
        """The logs that are read, as the checkpoint holds it: names in their order, or the pattern."""
        return sorted(self.names) if self.pattern is None else self.pattern

    def selects(self, split: S) -> bool:
        """False for a log that is no longer named; but a range of it that was planned is read to its end."""
        name = split.part.name
        return split.stop is not None or (name in self.names if self.pattern is None else self.matches(name))

    @property
    def lets_go(self) -> bool:
        """True if logs that are gone are forgotten."""
        return not self.bounded and self.on_data_loss == "ignore"

    def lost(self, text: str, warn: Callable[[str], None] = log.warning) -> None:
        """Raise DataLossError, or warn where loss is ignored."""
        if self.on_data_loss == "fail":
            raise DataLossError(f"{text}. on_data_loss='ignore' goes on with what is left")
        warn(text)

    def arrow_schema(self) -> pa.Schema:
        """The columns: those that were given, or the default ones."""
        return self.default_schema() if self.schema is None else self.schema

    def create_enumerator(self, context: EnumeratorContext[S]) -> SplitEnumerator[S, Checkpoint]:
        """The enumerator of a new run. Raises ImportError without the package of the client."""
        new: Checkpoint = {"of": self.selection, "known": {}, "waiting": [], "begun": False}
        return self.restore_enumerator(context, new)

    def restore_enumerator(
        self, context: EnumeratorContext[S], checkpoint: Checkpoint
    ) -> SplitEnumerator[S, Checkpoint]:
        """The enumerator of a run that goes on. Raises ValueError for a checkpoint of other logs."""
        return self.enumerator_type(self, context, checkpoint)

    def create_reader(self, context: ReaderContext) -> FetchingReader[S]:
        """A reader with one client for all its splits."""
        schema = self.arrow_schema() if context.schema is None else self.check_schema(context.schema)
        make_reader = partial(self.reader_type, self, schema)
        return FetchingReader(context, make_reader, threading=Threading.MANY_SPLITS)

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> LogSource[S]:
        """See `Source.from_options`. The options are the arguments; names are parted by commas."""
        return cls(schema=schema, **read_options(cls, options))


class LogEnumerator(SplitEnumerator[S, Checkpoint]):
    """Finds the parts of logs. Confined to its thread, but `discover`, which calls `find` and `open`.

    Raises ValueError where the checkpoint is of other logs than those of `source`, and the source is not told
    to follow.
    """

    def __init__(self, source: LogSource[S], context: EnumeratorContext[S], checkpoint: Checkpoint) -> None:
        now = source.selection
        if (before := checkpoint["of"]) != now:
            change = f"{source.logs}: the checkpoint is of {before!r}, and what is to be read now is {now!r}"
            if source.on_change == "fail" or source.bounded:
                follow = (
                    ", or give on_change='follow', which lets go of what is no longer named and reads what "
                    "is new from its beginning"
                )
                raise ValueError(f"{change}: begin with a new checkpoint{follow * (not source.bounded)}")
            log.warning("%s: followed, as on_change says", change)
        super().__init__(context, {**checkpoint, "of": now})
        self._source = source
        self._warned: set[str] = set()
        self.discovery_interval = None if source.bounded else source.discovery_interval

    # -- what a connector says -----------------------------------------------------------------------

    @abstractmethod
    def find(self, *, first_look: bool) -> Mapping[str, tuple[str, int]]:
        """The logs that are there now: of each its identity, and how many parts it has."""

    @abstractmethod
    def open(self, parts: Sequence[Part], *, first_look: bool) -> list[S]:
        """The splits that new parts are: without an end, or ranges of a bounded source; in any number."""

    @abstractmethod
    def ahead(self, split: S, limit: ReadLimit) -> S | None:
        """See `advance`."""

    @abstractmethod
    def is_gone(self, split: S) -> bool:
        """True if the log of a split without end was deleted. Asks the service nothing: `ahead` has."""

    # -- discovery -------------------------------------------------------------------------------------

    def discover(self, checkpoint: Checkpoint, most: int) -> tuple[Sequence[S], Checkpoint]:
        """Parts that are there now and were not; of a bounded source, ranges of them, at its first look."""
        known, waiting, begun = dict(checkpoint["known"]), list(checkpoint["waiting"]), checkpoint["begun"]
        if not waiting and not (begun and self._source.bounded):
            new: list[Part] = []
            for name, (identity, parts) in self.find(first_look=not begun).items():
                of, count = known.get(name, (identity, 0))
                # None is known of one that was made again.
                first = count if of == identity else 0
                if parts > first:
                    known[name] = [identity, parts]
                    new += [Part(name, number, identity) for number in range(first, parts)]
            waiting = [vars(split) for split in self.open(new, first_look=not begun)]
        splits = [self._source.split_type(**each) for each in waiting[:most]]
        return splits, {**checkpoint, "known": known, "waiting": waiting[most:], "begun": True}

    # -- micro-batches ---------------------------------------------------------------------------------

    def advance(self, split: S, limit: ReadLimit) -> S | None:
        """Return what is there now of a part, at most so many rows. Raises DataLossError."""
        if limit.nbytes is not None:
            raise ValueError(
                f"max_bytes: {self._source.logs} do not say how many bytes they have: use max_rows"
            )
        return self.ahead(split, limit) if self._source.selects(split) else None

    def let_go(self, splits: Sequence[S]) -> Collection[str]:
        """Those of logs that are no longer named; and that were deleted, where loss is ignored."""
        source = self._source
        gone = [
            split
            for split in splits
            if split.stop is None and (not source.selects(split) or (source.lets_go and self.is_gone(split)))
        ]
        self._forget({split.part._replace(number=0) for split in gone})
        return [split.split_id for split in gone]

    def warn_once(self, text: str) -> None:
        """Warn of what may be seen at each look."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    # -- tasks -----------------------------------------------------------------------------------------

    def handle_finished(self, splits: Sequence[S]) -> None:
        """Forget the logs of which a task has let go, for good."""
        # spec: SplitAssignment!Complete
        if not self._source.bounded:
            self._forget({split.part._replace(number=0) for split in splits})

    def handle_restored(self, unread: Collection[S]) -> None:
        """Forget the logs of which no reader had anything any more."""
        # spec: SplitAssignment!Restore
        if not self._source.bounded:
            known, waiting = self.checkpoint["known"], self.checkpoint["waiting"]
            left = [*unread, *(self._source.split_type(**each) for each in waiting)]
            there = {split.part.name for split in left}
            self._forget({Part(name, 0, known[name][0]) for name in known if name not in there})

    def _forget(self, logs: Collection[Part]) -> None:
        """Know nothing of the logs of these parts, which are numbered 0."""
        known = self.checkpoint["known"]
        left = {name: each for name, each in known.items() if Part(name, 0, each[0]) not in logs}
        if len(left) < len(known):
            self.checkpoint = {**self.checkpoint, "known": left}


# -- where reading starts and stops -----------------------------------------------------------------

LATEST_TIME = 1e11
"""Seconds since 1970, in the year 5138: what is above were milliseconds."""


def parse_where(text: str) -> Any:
    """An option that is a word, a number or JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def check_where(name: str, where: object, words: Sequence[str], logs: Sequence[str]) -> Any:
    """A word, a time as a float, or offsets by log and part, in two levels. Raises ValueError.

    logs: the names that offsets may have; none where these are not known.
    """
    if isinstance(where, str) and where in words:
        return where
    if isinstance(where, Mapping):
        unknown = [log for log in where if logs and log not in logs]
        if unknown:
            raise ValueError(f"{name}={where!r}: {unknown[0]!r} is not among {', '.join(logs)}")
        with suppress(AttributeError, TypeError, ValueError):
            offsets = {str(of): {int(at): int(each) for at, each in where[of].items()} for of in where}
            if all(offset >= 0 for parts in offsets.values() for offset in parts.values()):
                return offsets
    elif isinstance(where, int | float) and not isinstance(where, bool) and 0 <= where <= LATEST_TIME:
        return float(where)
    raise ValueError(
        f"{name}={where!r}: must be {', '.join(map(repr, words))}, seconds since 1970, not milliseconds, or "
        "offsets of 0 and more as {name: {number: offset}}"
    )


class Cursor(Progress[S]):
    """A split that is read, and where reading stands."""

    def __init__(self, split: S) -> None:
        super().__init__(split)
        self.paused = False
        self.ended = split.start == split.stop
        """True if there is nothing more to be read."""


K = TypeVar("K", bound=Cursor[Any])


class LogReader(SplitReader[S], Generic[S, K]):
    """Keeps which splits are read, and how far. A connector derives one, and says how records come: `read`.

    Its fetcher's thread calls all of it.
    """

    cursor_type: ClassVar[type[Cursor[Any]]] = Cursor

    def __init__(self, source: LogSource[S], schema: pa.Schema) -> None:
        self.source, self.schema = source, schema
        self.cursors: dict[str, K] = {}
        """The parts that are read, in the order in which they came, by the ids of the splits."""
        self.changed = False
        """True if other splits are to be read than before, so that `settle` is due."""

    @abstractmethod
    def read(self, live: Sequence[K]) -> list[Fetched]:
        """The next records of these, which are not paused; looks for them for about `LOOK_S`."""

    def settle(self, live: Sequence[K]) -> None:
        """Heed that these are read now. Those that it finds to be at their end it says are `ended`."""

    def handle_splits_changes(self, change: SplitsAdded[S]) -> None:
        """Take splits up."""
        self.changed = True
        for split in change.splits:
            cursor: Any = self.cursor_type(split)
            # One of a log that is no longer named ends where it stands.
            cursor.ended |= not self.source.selects(split)
            self.cursors[split.split_id] = cursor

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Fetch nothing of some splits for a while. What the client has fetched of them it may drop."""
        self.changed = True
        for split_ids, paused in ((pause, True), (resume, False)):
            for split_id in self.cursors.keys() & split_ids:
                self.cursors[split_id].paused = paused

    def fetch(self) -> Sequence[Fetched]:
        """The next records of splits that have any."""
        live = [cursor for cursor in self.cursors.values() if not cursor.paused]
        if self.changed:
            self.changed = False
            self.settle(live)
        if ended := [self.finish(cursor) for cursor in live if cursor.ended]:
            return ended
        if live:
            return self.read(live)
        time.sleep(LOOK_S)
        return []

    def finish(self, cursor: K, records: object = ()) -> Fetched:
        """Let go of a split, with its last records."""
        self.changed = True
        del self.cursors[cursor.split.split_id]
        return Fetched(cursor.split.split_id, records, cursor.split.stop, finished=True)
