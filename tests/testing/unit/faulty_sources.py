"""A correct source of a log on disk, and twelve like it with one fault each, for whatever checks connectors.

`CORRECT(folder)` and each of `FAULTS` write the log into an empty folder and make a source of it. They take
the source's arguments too: `follow=True` makes one without an end. `Log(folder)` changes the log: `append`,
`trim`, `spoil`. A fault is a class of readers or enumerators; its docstring names the rule that it breaks.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pillarbox.sources import Fetched, Source, Split, SplitEnumerator, SplitReader
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SplitsAdded
from pillarbox.sources.source import Boundedness
from pillarbox.sources.split import DataLossError

SHARDS = {"east": 40, "north": 1_150, "south": 310, "west": 0}
"""Rows of each shard of a new log."""
FILE_ROWS, BATCH_ROWS, ROW_BYTES = 100, 40, 80
"""Rows of a file, rows of a batch at most, bytes of a row."""
LOOK_EVERY, ROUND_TIMEOUT_S = 0.05, 5.0
"""Seconds between two looks of a fetch for new rows, and of all its looks."""
FORGOTTEN_TICKS = 100
"""Ticks of 0.2 s of a forgotten thread, so that the process of many tests is not full of such threads."""
TOKEN = "tok-4f9c2e71d8"
TEXT, NUMBER = pa.string(), pa.float64()
SCHEMA = pa.schema(
    {"shard": TEXT, "offset": pa.int64(), "time": NUMBER, "key": TEXT, "value": NUMBER, "note": TEXT}
)


def record(shard: str, offset: int) -> dict[str, Any]:
    """The row of a new log in this place. One in 50 has no key, and some stretches have no note."""
    return {
        "time": float(offset),
        "key": None if offset % 50 == 7 else f"{shard}-{offset}",
        "value": offset / 2,
        "note": f"note {offset}" if offset % 3 == 0 and offset % 400 < 380 else None,
    }


def expected() -> list[tuple[Any, ...]]:
    """The rows of a new log as tuples in the order of `SCHEMA`, sorted."""
    return [(shard, at, *record(shard, at).values()) for shard in SHARDS for at in range(SHARDS[shard])]


@dataclass(frozen=True)
class Log:
    """A folder of shards, which are folders of files of lines, named for the offset of the first one."""

    folder: str

    def files(self, shard: str) -> list[int]:
        return sorted(int(path.stem) for path in (Path(self.folder) / shard).iterdir())

    def lines(self, shard: str, base: int) -> list[bytes]:
        """The whole lines of a file; none if it was removed."""
        path = self.path(shard, base)
        return path.read_bytes().split(b"\n")[:-1] if path.exists() else []

    def end(self, shard: str) -> int:
        """The offset that the next row will have."""
        base = max(self.files(shard), default=0)
        return base + len(self.lines(shard, base))

    def read(self, shard: str, offset: int) -> list[bytes]:
        """The lines from `offset` to the end of its file; none where the log ends."""
        bases = self.files(shard)
        base = max((each for each in bases if each <= offset), default=0)
        lines = self.lines(shard, base)[offset - base :]
        if not lines and any(each > offset for each in bases):
            raise DataLossError(f"shard {shard!r}: what stood from {offset} on was removed unread")
        return lines

    def append(self, shard: str, rows: int) -> None:
        """Add rows to a shard, which is made if it is not there."""
        (Path(self.folder) / shard).mkdir(parents=True, exist_ok=True)
        end = self.end(shard)
        for offset in range(end, end + rows):
            with self.path(shard, offset - offset % FILE_ROWS).open("ab") as file:
                file.write(json.dumps(record(shard, offset)).encode() + b"\n")

    def trim(self, shard: str, files: int = 1) -> None:
        """Remove the oldest files, as retention does; never the last one."""
        for base in self.files(shard)[:-1][:files]:
            self.path(shard, base).unlink()

    def spoil(self, shard: str, offset: int) -> None:
        """Put a value that is not a number into a row."""
        path, at = self.path(shard, offset - offset % FILE_ROWS), offset % FILE_ROWS
        lines = path.read_bytes().split(b"\n")
        lines[at] = json.dumps({**record(shard, offset), "value": "n/a"}).encode()
        path.write_bytes(b"\n".join(lines))

    def path(self, shard: str, base: int) -> Path:
        return Path(self.folder) / shard / f"{base:012d}.log"


@dataclass(frozen=True)
class LogSplit(Split):
    """The rows of a shard, whose name is the id. A position is `{"offset": 7}`."""

    address: str = ""


def offset_of(position: Any) -> int:
    return 0 if position is None else int(position["offset"])


class LogEnumerator(SplitEnumerator[LogSplit, list[str]]):
    """Finds the shards. Its checkpoint: the names of those that it has found."""

    def __init__(self, source: LogSource, context: EnumeratorContext[LogSplit], known: list[str]) -> None:
        super().__init__(context, known)
        self.source, self.log = source, Log(source.folder)
        self.discovery_interval = 0.2 if source.follow else None

    def discover(self, checkpoint: list[str], most: int) -> tuple[Sequence[LogSplit], list[str]]:
        there = sorted(path.name for path in Path(self.source.folder).iterdir())
        new = [shard for shard in there if shard not in checkpoint][:most]
        return [self.split(shard) for shard in new], [*checkpoint, *new]

    def split(self, shard: str) -> LogSplit:
        stop = None if self.source.follow else {"offset": self.log.end(shard)}
        return LogSplit(shard, {"offset": min(self.log.files(shard), default=0)}, stop, self.address(shard))

    def address(self, shard: str) -> str:
        return f"log://localhost/{shard}"

    def advance(self, split: LogSplit, limit: ReadLimit) -> LogSplit | None:
        start = offset_of(split.start)
        end = self.log.end(split.split_id) if split.stop is None else offset_of(split.stop)
        if limit.rows is not None:
            end = min(end, start + max(1, limit.rows))
        if limit.nbytes is not None:
            end = min(end, start + max(1, limit.nbytes // ROW_BYTES))
        return split.up_to({"offset": end}) if end > start or split.stop == {"offset": end} else None


class Cursor:
    """A position in a split: the offset of the next row to give, and the lines read ahead from there on."""

    def __init__(self, split: LogSplit) -> None:
        self.shard, self.offset = split.split_id, offset_of(split.start)
        self.stop = None if split.stop is None else offset_of(split.stop)
        self.ahead: list[bytes] = []


class LogReader(SplitReader[LogSplit]):
    """Reads shards in turn, a file at a time, and gives the rows in batches."""

    def __init__(self, source: LogSource, schema: pa.Schema) -> None:
        self.source, self.schema, self.log = source, schema, Log(source.folder)
        self.cursors: dict[str, Cursor] = {}
        self.woken = threading.Event()

    def handle_splits_changes(self, change: SplitsAdded[LogSplit]) -> None:
        self.cursors.update((split.split_id, Cursor(split)) for split in change.splits)

    def wake_up(self) -> None:
        self.woken.set()

    def fetch(self) -> Sequence[Fetched]:
        deadline = time.monotonic() + ROUND_TIMEOUT_S
        while True:
            for split_id in [*self.cursors]:
                self.cursors[split_id] = cursor = self.cursors.pop(split_id)
                fetched = self.batch(cursor)
                if fetched is not None:
                    if fetched.finished:
                        del self.cursors[split_id]
                    return (fetched,)
            if self.rest() or time.monotonic() > deadline:
                return ()

    def rest(self) -> bool:
        """Wait until the next look; whether it was woken."""
        woken = self.woken.wait(LOOK_EVERY)
        if woken:
            self.woken.clear()
        return woken

    def batch(self, cursor: Cursor) -> Fetched | None:
        """The next rows of a shard; None if it has none now and does not end here."""
        if not cursor.ahead and (cursor.stop is None or cursor.offset < cursor.stop):
            cursor.ahead = self.read(cursor)
        most = self.most(cursor)
        lines, cursor.ahead = cursor.ahead[:most], cursor.ahead[most:]
        rows = [self.row(cursor.shard, cursor.offset + at, line) for at, line in enumerate(lines)]
        cursor.offset += len(lines)
        finished = cursor.stop is not None and cursor.offset >= cursor.stop
        if not lines and not finished:
            return None
        records = self.records([row for row in rows if row is not None])
        return Fetched(cursor.shard, records, {"offset": cursor.offset}, finished)

    def read(self, cursor: Cursor) -> list[bytes]:
        """The lines of the file at hand; none, and behind a gap next time, where that is allowed."""
        try:
            return self.log.read(cursor.shard, cursor.offset)
        except DataLossError as error:
            self.lost(error)
        later = min(each for each in self.log.files(cursor.shard) if each > cursor.offset)
        cursor.offset = later if cursor.stop is None else min(later, cursor.stop)
        return []

    def lost(self, error: Exception) -> None:
        if self.source.on_data_loss == "fail":
            raise error
        logging.getLogger("pillarbox").warning("passed over, as on_data_loss is 'ignore': %s", error)

    def row(self, shard: str, offset: int, line: bytes) -> dict[str, Any] | None:
        """The row of a line; None for a broken one, where that is allowed."""
        try:
            found = json.loads(line)
            return {"shard": shard, "offset": offset, **found, "value": float(found["value"])}
        except ValueError as error:
            self.lost(ValueError(f"shard {shard!r}, offset {offset}: {error}"))
            return None

    def most(self, cursor: Cursor) -> int:
        return BATCH_ROWS if cursor.stop is None else min(BATCH_ROWS, cursor.stop - cursor.offset)

    def records(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)


@dataclass(frozen=True)
class LogSource(Source[LogSplit, list[str]]):
    """The rows of a log, those of each shard in their order. A plain value.

    follow: whether it goes on behind what is there. on_data_loss: "fail", or "ignore" to pass over what was
    removed or is broken, with a warning. token: the secret of a service. The others are for faults.
    """

    split_type = LogSplit
    folder: str
    follow: bool = False
    on_data_loss: str = "fail"
    token: str = field(default=TOKEN, repr=False)
    reader: type[LogReader] = field(default=LogReader, repr=False)
    enumerator: type[LogEnumerator] = field(default=LogEnumerator, repr=False)

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED if self.follow else Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext[LogSplit], checkpoint: Any = ()) -> LogEnumerator:
        return self.enumerator(self, context, [*checkpoint])

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[LogSplit]:
        schema = SCHEMA if context.schema is None else context.schema
        if not set(schema.names) <= set(SCHEMA.names):
            raise ValueError(f"schema: has columns {schema.names}; there are {SCHEMA.names}")
        make = partial(self.reader, self, schema)
        return FetchingReader(context, make, threading=Threading.MANY_SPLITS)

    def arrow_schema(self) -> pa.Schema:
        return SCHEMA


def made(folder: Path | str, **arguments: Any) -> LogSource:
    """A source of the log in a folder, which is written if the folder is empty."""
    if not any(Path(folder).iterdir()):
        for shard, rows in SHARDS.items():
            Log(str(folder)).append(shard, rows)
    return LogSource(str(folder), **arguments)


class PositionOfTheClient(LogReader):
    """A position behind all that was read ahead. Rule: it is where reading goes on after `records`."""

    def batch(self, cursor: Cursor) -> Fetched | None:
        fetched = super().batch(cursor)
        return fetched and fetched._replace(position={"offset": cursor.offset + len(cursor.ahead)})


class PageOverTheStop(LogReader):
    """A last page that is not cut. Rule: a reader hands out no rows at or after `stop`."""

    def most(self, cursor: Cursor) -> int:
        return BATCH_ROWS


class EmptyRangeWithoutEnd(LogReader):
    """An empty range that never ends. Rule: a reader says `finished` at `stop`, if need be without rows."""

    def batch(self, cursor: Cursor) -> Fetched | None:
        return None if cursor.offset == cursor.stop else super().batch(cursor)


class KeyMadeWhenRead(LogReader):
    """A key made when a row without one is read. Rule: the same range gives the same rows at any time."""

    def row(self, shard: str, offset: int, line: bytes) -> dict[str, Any] | None:
        row = super().row(shard, offset, line)
        return row and {**row, "key": row["key"] or uuid.uuid4().hex}


class LossPassedOver(LogReader):
    """Silence about what was removed unread. Rule: that is a DataLossError, unless it is to be ignored."""

    def lost(self, error: Exception) -> None:
        if not isinstance(error, DataLossError):
            super().lost(error)


class TypesOfEachBatch(LogReader):
    """Types guessed for each batch, null for nulls alone. Rule: rows have the columns of the schema."""

    def records(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(rows).select(self.schema.names) if rows else super().records(rows)


class WokenForEver(LogReader):
    """A wake-up that ends all later fetches, so they spin. Rule: a fetch blocks until there are rows."""

    def rest(self) -> bool:
        return self.woken.wait(LOOK_EVERY)


class ThreadLeftBehind(LogReader):
    """A thread that outlives its reader. Rule: `close` lets go of everything."""

    def __init__(self, source: LogSource, schema: pa.Schema) -> None:
        super().__init__(source, schema)
        threading.Thread(target=self.tick, name="log-tick", daemon=True).start()

    def tick(self) -> None:
        for _ in range(FORGOTTEN_TICKS):
            self.wake_up()
            time.sleep(0.2)


class SecondRestartFindsAll(LogEnumerator):
    """A snapshot without what the run was restored with. Rule: it is all that is known."""

    def __init__(self, source: LogSource, context: EnumeratorContext[LogSplit], known: list[str]) -> None:
        super().__init__(source, context, [])
        self.before = known

    def discover(self, checkpoint: list[str], most: int) -> tuple[Sequence[LogSplit], list[str]]:
        splits, known = super().discover([*self.before, *checkpoint], most)
        return splits, known[len(self.before) :]


class RangeBehindTheLog(LogEnumerator):
    """A range as long as the limit, be its rows there or not. Rule: `advance` gives what can be read now."""

    def advance(self, split: LogSplit, limit: ReadLimit) -> LogSplit | None:
        if limit.rows is None or split.stop is not None:
            return super().advance(split, limit)
        return split.up_to({"offset": offset_of(split.start) + max(1, limit.rows)})


class SecretInSplits(LogEnumerator):
    """An address that has the token. Rule: secrets belong into the source, as splits are written down."""

    def address(self, shard: str) -> str:
        return f"log://reader:{self.source.token}@localhost/{shard}"


CORRECT: Callable[..., LogSource] = made
FAULTS: dict[str, Callable[..., LogSource]] = {
    **{kind.__name__: partial(made, reader=kind) for kind in LogReader.__subclasses__()},
    **{kind.__name__: partial(made, enumerator=kind) for kind in LogEnumerator.__subclasses__()},
}
