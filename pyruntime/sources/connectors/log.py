"""The skeleton of sources that read logs: to a log records are added at its end, and they go from its front.

Kafka's topics and the streams of Redis are logs. A log has parts, which are read each in its order: a topic
its partitions, a stream only itself. What all logs have in common stands here: which ones are read and what
becomes of the checkpoint when others are named, where reading starts and ends, how parts are found and
given out, which are let go of. A connector says how its service is asked (`find`, `open`, `ahead`) and what
rows look like.

Confined to the threads that `SplitEnumerator` and `SplitReader` name; sources are values, for any thread.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from pillarbox.sources.connectors.options import Options, check_on_data_loss
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator
from pillarbox.sources.errors import DataLossError
from pillarbox.sources.reader import Fetched, SplitReader
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pillarbox")

ON_CHANGE = ("fail", "follow")

Checkpoint = dict[str, Any]
"""of: which logs are read, as `LogSource.selection` says; known: of each log its identity, and how many of
its parts are known; waiting: splits that were not given out, as their fields; begun: whether every part of
the first look is known, so that those which come now are new."""


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
L = TypeVar("L", bound="LogSource[Any]")


class LogSource(Source[S, Checkpoint]):
    """What sources of logs have in common. `logs` is the argument that names them, "topics" or "streams".

    service: where they are; its text shows no secret. schema: None: `default_schema`. See the connectors
    for the other arguments. Raises TypeError or ValueError for a bad one.
    """

    logs: ClassVar[str]
    event_times: ClassVar[str]
    """The only `event_time` that there is."""

    def __init__(
        self,
        service: Any,
        names: str | Sequence[str] | None,
        pattern: str | None,
        *,
        schema: pa.Schema | None,
        bounded: bool,
        discovery_interval: float,
        on_data_loss: str,
        on_change: str,
        event_time: str | None,
    ) -> None:
        self.service = service
        self.names = () if names is None else (names,) if isinstance(names, str) else tuple(names)
        self.pattern = pattern
        if (not self.names) == (pattern is None):
            raise ValueError(f"{self.logs}={names!r}, pattern={pattern!r}: give one of them")
        if not all(isinstance(name, str) and name for name in self.names):
            raise TypeError(f"{self.logs}={names!r}: must be names")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"{self.logs}={names!r}: each must be named once")
        if event_time not in (None, self.event_times):
            raise ValueError(f"event_time={event_time!r}: must be {self.event_times!r} or None")
        if on_change not in ON_CHANGE:
            raise ValueError(f"on_change={on_change!r}: must be 'fail' or 'follow'")
        self.bounded = bool(bounded)
        self.discovery_interval = float(check_seconds("discovery_interval", discovery_interval))
        self.on_data_loss = check_on_data_loss(on_data_loss)
        self.on_change = on_change
        self.event_time = event_time
        self._schema = None if schema is None else self.check_schema(schema)

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

    def lost(self, text: str) -> None:
        """Raise DataLossError, or warn where loss is ignored."""
        if self.on_data_loss == "fail":
            raise DataLossError(f"{text}. on_data_loss='ignore' goes on with what is left")
        log.warning("%s", text)

    def arrow_schema(self) -> pa.Schema:
        """The columns: those that were given, or the default ones."""
        return self.default_schema() if self._schema is None else self._schema

    @classmethod
    def _from_options(cls: type[L], options: Mapping[str, str], schema: pa.Schema | None, **given: Any) -> L:
        """The source whose arguments are options, each of the type of its default, and those in `given`."""
        left = Options(options)
        for name, parameter in signature(cls).parameters.items():
            default = parameter.default
            if name in given or name == "schema":
                continue
            if name == cls.logs:
                given[name] = left.words(name)
            elif isinstance(default, bool):
                given[name] = left.flag(name, default)
            elif isinstance(default, int | float):
                given[name] = left.number(name, type(default), default)
            elif default is Parameter.empty:
                given[name] = left.text(name, required=True)
            else:
                given[name] = left.text(name) or default
        left.check_all_read()
        return cls(schema=schema, **given)


class LogEnumerator(SplitEnumerator[S, Checkpoint]):
    """Finds the parts of logs. Confined to its thread, but `discover`, which calls `find`, `open` and `cut`.

    checkpoint: what to go on from; None for a new run. Raises ValueError where it is of other logs than
    those of `source`, and the source is not told to follow.
    """

    def __init__(
        self, source: LogSource[S], context: EnumeratorContext[S], checkpoint: Checkpoint | None
    ) -> None:
        now = source.selection
        if checkpoint is None:
            checkpoint = {"of": now, "known": {}, "waiting": [], "begun": False}
        elif "of" not in checkpoint:
            raise ValueError(
                f"checkpoint={sorted(checkpoint)}: an earlier Pillarbox wrote it, without what it is of: "
                "begin with a new checkpoint"
            )
        elif (before := checkpoint["of"]) != now:
            change = f"{source.logs}: the checkpoint is of {before!r}, and what is to be read now is {now!r}"
            if source.on_change == "fail" or source.bounded:
                ways = "begin with a new checkpoint"
                if not source.bounded:
                    ways += (
                        ", or give on_change='follow', which lets go of what is no longer named and reads "
                        "what is new from its beginning"
                    )
                raise ValueError(f"{change}: {ways}")
            log.warning("%s: followed, as on_change says", change)
            checkpoint = {**checkpoint, "of": now}
        super().__init__(context, checkpoint)
        self._log_source = source
        self._warned: set[str] = set()

    # -- what a connector says -----------------------------------------------------------------------

    @abstractmethod
    def find(self, *, first_look: bool) -> Mapping[str, tuple[str, int]]:
        """The logs that are there now: of each its identity, and how many parts it has."""

    @abstractmethod
    def open(self, parts: Sequence[Part], *, first_look: bool) -> list[S]:
        """The splits that new parts are: without an end, or ranges of a bounded source; in any number."""

    def cut(self, split: S) -> tuple[S, S | None]:
        """The front of a split that is given out at once, and the rest."""
        return split, None

    @abstractmethod
    def ahead(self, split: S, limit: ReadLimit) -> S | None:
        """See `advance`."""

    @abstractmethod
    def is_gone(self, split: S) -> bool:
        """True if the log of a split without end was deleted. Asks the service nothing: `ahead` has."""

    # -- discovery -------------------------------------------------------------------------------------

    def discover(self, checkpoint: Checkpoint, most: int) -> tuple[Sequence[S], Checkpoint]:
        """Logs and parts that are there now; of a bounded source, ranges of them, found at its first look."""
        known, waiting, begun = dict(checkpoint["known"]), list(checkpoint["waiting"]), checkpoint["begun"]
        looked = False
        while not waiting and not (begun and (looked or self._log_source.bounded)):
            looked, first_look = True, not begun
            found = self.find(first_look=first_look)
            new: list[Part] = []
            for name, (identity, parts) in found.items():
                first = _count(known, name, identity)
                until = min(parts, first + most - len(new))
                if until > first:
                    known[name] = [identity, until]
                    new += [Part(name, number, identity) for number in range(first, until)]
            begun = begun or all(_count(known, name, identity) == n for name, (identity, n) in found.items())
            waiting = [vars(split) for split in self.open(new, first_look=first_look)]
        splits: list[S] = []
        kind = self._log_source.split_type
        while waiting and len(splits) < most:
            front, rest = self.cut(kind(**waiting.pop(0)))
            splits.append(front)
            if rest is not None:
                waiting.insert(0, vars(rest))
        return splits, {**checkpoint, "known": known, "waiting": waiting, "begun": begun}

    # -- micro-batches ---------------------------------------------------------------------------------

    def advance(self, split: S, limit: ReadLimit) -> S | None:
        """What is there now of a part, at most so much. Raises DataLossError."""
        return self.ahead(split, limit) if self._log_source.selects(split) else None

    def let_go(self, splits: Sequence[S]) -> Collection[str]:
        """Those of logs that are no longer named; and that were deleted, where loss is ignored."""
        source = self._log_source
        gone = [
            split
            for split in splits
            if split.stop is None and (not source.selects(split) or (source.lets_go and self.is_gone(split)))
        ]
        self._forget({(split.part.name, split.part.identity) for split in gone})
        return [split.split_id for split in gone]

    def lost(self, text: str) -> None:
        """Raise DataLossError; where loss is ignored, warn, once."""
        if self._log_source.on_data_loss == "fail":
            self._log_source.lost(text)
        self.warn_once(text)

    def warn_once(self, text: str) -> None:
        """Warn of what may be seen at each look."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    # -- tasks -----------------------------------------------------------------------------------------

    def handle_finished(self, splits: Sequence[S]) -> None:
        """Forget the logs of which a task has let go, for good."""
        # spec: SplitAssignment!Complete
        if not self._log_source.bounded:
            self._forget({(split.part.name, split.part.identity) for split in splits})

    def handle_restored(self, unread: Collection[S]) -> None:
        """Forget the logs of which no reader had anything any more."""
        # spec: SplitAssignment!Restore
        if not self._log_source.bounded:
            there = {split.part.name for split in unread}
            known = self.checkpoint["known"]
            self._forget({(name, known[name][0]) for name in known if name not in there})

    def _forget(self, logs: Collection[tuple[str, str]]) -> None:
        known = self.checkpoint["known"]
        left = {name: each for name, each in known.items() if (name, each[0]) not in logs}
        if len(left) < len(known):
            self.checkpoint = {**self.checkpoint, "known": left}


class LogSplitReader(SplitReader[S]):
    """What readers of logs have in common. Its fetcher's thread calls all but `wake_up`."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self._ended: list[Fetched] = []
        """What the next fetch says is finished."""

    def wake_up(self) -> None:
        """End the wait of a `fetch`. Any thread; does not block."""
        self._woken.set()

    def _selected(self, source: LogSource[S], splits: Sequence[S]) -> list[S]:
        """Those that are to be read; the others, of logs that are no longer named, end where they stand."""
        for split in splits:
            if not source.selects(split):
                self._ended.append(Fetched(split.split_id, (), split.start, finished=True))
        return [split for split in splits if source.selects(split)]

    def _take_ended(self) -> list[Fetched]:
        ended, self._ended = self._ended, []
        return ended


def check_seconds(name: str, value: Any) -> float:
    """`value` if it is a number of seconds above 0. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name}={value!r}: must be seconds above 0")
    return value


def _count(known: Mapping[str, Sequence[Any]], name: str, identity: str) -> int:
    """How many parts of a log are known: none of one that was made again."""
    known_identity, count = known.get(name, (identity, 0))
    return int(count) if known_identity == identity else 0
