"""An `InputFormat` as a `Source`, and a folder that is watched, each file read by an `InputFormat`.

A split's position is how many of its records were read: after a restart so many are read and dropped. So a
format must give a split's records in the same order each time.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from pillarbox.mailbox.check import check_positive_int
from pillarbox.redaction import shown_address
from pillarbox.sources.connectors.files.discovery import Known, KnownSerializer
from pillarbox.sources.connectors.files.listing import FoundFile, list_files, open_file_system
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader
from pillarbox.sources.legacy_rows import row_of
from pillarbox.sources.reader import (
    Fetched,
    ReaderContext,
    SourceReader,
    SplitReader,
    SplitsAdded,
    SplitsChange,
)
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split
from pillarbox.task.failures import Failures
from pillarbox.task.format_source import read_split
from pillarbox.task.input_format import FormatContext, InputFormat, ReplicatingInputFormat, RichInputFormat
from pillarbox.task.moments import check_callable, check_duration

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 1_000
MIN_SPLITS = 1
REMEMBER = 600.0
"""Seconds by which a file may be older than the newest one when it appears in a folder."""
MOST_REMEMBERED = 10_000

S = TypeVar("S", bound=Split)
C = TypeVar("C")


@dataclass(frozen=True)
class FormatSplit(Split):
    """A split of a format. `payload` is the format's own, pickled."""

    payload: str = ""


@dataclass(frozen=True)
class FolderSplit(Split):
    """A file of a folder."""

    path: str = ""
    size: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.size

    @property
    def files(self) -> int:
        """One."""
        return 1


class _FormatSource(Source[S, C]):
    """What both sources have: a format, its parameters, its rows."""

    def __init__(
        self,
        make: Callable[[], InputFormat[Any, Any]],
        parameters: Mapping[str, Any] | None,
        schema: pa.Schema | None,
        batch: int,
    ) -> None:
        check_callable("make", make)
        format = make()
        if not isinstance(format, InputFormat):
            raise TypeError(f"make={make!r}: must make an InputFormat, not {type(format).__name__}")
        if isinstance(format, ReplicatingInputFormat):
            raise ValueError(
                f"make={make!r}: makes a ReplicatingInputFormat, whose splits every reader reads; a source "
                "gives each split to one reader"
            )
        self.make = make
        """Makes the format."""
        self.parameters = {} if parameters is None else dict(parameters)
        self.schema = schema
        self.batch = check_positive_int("batch", batch)

    def make_configured(self) -> InputFormat[Any, Any]:
        """A format that was told the parameters."""
        format = self.make()
        format.configure(self.parameters)
        return format

    def payload(self, split: S) -> Any:
        """What the format opens."""
        raise NotImplementedError

    def create_reader(self, context: ReaderContext) -> SourceReader[S]:
        """Reads one split after the other."""
        # Nobody knows how many readers there will be, so the format is told the least that it can be.
        place = FormatContext("source", context.subtask, context.subtask + 1)
        return FetchingReader(context, lambda: FormatReader(self, place))

    def arrow_schema(self) -> pa.Schema:
        """The columns that were given. Raises TypeError if none were."""
        return super().arrow_schema() if self.schema is None else self.schema


class FromInputFormat(_FormatSource[FormatSplit, "list[str] | None"]):
    """The bounded source that reads the splits of an `InputFormat`.

    make: makes the format, one for each who uses it; it must pickle where the source travels, and so must the
        splits of the format.
    parameters: for `configure`. min_splits: for `create_input_splits`, which is called once, on the
    discovery thread. schema: the columns, for Spark; a record that is no tuple is then a row of one column.
    batch: records of one fetch.

    Calls `make()` once, at once. Raises TypeError for what does not make an InputFormat, ValueError for a
    ReplicatingInputFormat, TypeError or ValueError for other bad arguments. A format's own `split_assigner`
    is not asked: splits are given out by need.
    """

    split_type = FormatSplit
    boundedness = Boundedness.BOUNDED

    def __init__(
        self,
        make: Callable[[], InputFormat[Any, Any]],
        *,
        parameters: Mapping[str, Any] | None = None,
        min_splits: int = MIN_SPLITS,
        schema: pa.Schema | None = None,
        batch: int = BATCH,
    ) -> None:
        super().__init__(make, parameters, schema, batch)
        self.min_splits = check_positive_int("min_splits", min_splits)

    def create_enumerator(self, context: EnumeratorContext[FormatSplit]) -> FormatEnumerator:
        """Knows nothing yet."""
        return FormatEnumerator(context, None, self)

    def restore_enumerator(
        self, context: EnumeratorContext[FormatSplit], checkpoint: list[str] | None
    ) -> FormatEnumerator:
        """Knows the splits that were not given out."""
        return FormatEnumerator(context, checkpoint, self)

    def payload(self, split: FormatSplit) -> Any:
        """The format's own split."""
        return pickle.loads(base64.b64decode(split.payload))


class FormatEnumerator(SplitEnumerator[FormatSplit, "list[str] | None"]):
    """Asks the format for its splits, once. The checkpoint is those that were not found yet: (id, split)."""

    def __init__(
        self,
        context: EnumeratorContext[FormatSplit],
        checkpoint: list[str] | None,
        source: FromInputFormat,
    ) -> None:
        super().__init__(context, checkpoint)
        self._source = source

    def discover(
        self, checkpoint: list[str] | None, most: int
    ) -> tuple[Sequence[FormatSplit], list[str] | None]:
        """The first of those that are left; what is left then."""
        if checkpoint is None:
            created = self._source.make_configured().create_input_splits(self._source.min_splits)
            checkpoint = [
                f"{number} {base64.b64encode(pickle.dumps(split)).decode()}"
                for number, split in enumerate(created)
            ]
        found = [each.partition(" ") for each in checkpoint[:most]]
        return [FormatSplit(number, payload=payload) for number, _, payload in found], checkpoint[most:]

    def advance(self, split: FormatSplit, limit: ReadLimit) -> FormatSplit | None:
        """All of it: only the format knows how many records there are."""
        return split


class FromFolder(_FormatSource[FolderSplit, Known]):
    """The source that watches a folder, and reads each new file by an `InputFormat`.

    path: a file, a folder, a pattern, or a URI that Arrow's file systems know. What `open` of the format gets
        is a path in that file system.
    make, parameters, schema, batch: as for `FromInputFormat`.
    interval: seconds between two looks; None: one look, then the source is bounded.
    recursive: whether folders in the folder count. remember: seconds by which a file may be older than the
        newest one when it appears; one that is older yet is not found.

    A file is found once, those modified first in front. One that grows or is rewritten is not read again
    while it is remembered, and is a new one later: move files in when they are finished. Raises as
    `FromInputFormat` does.
    """

    split_type = FolderSplit

    def __init__(
        self,
        path: str,
        make: Callable[[], InputFormat[Any, Any]],
        *,
        parameters: Mapping[str, Any] | None = None,
        interval: float | None = 1.0,
        recursive: bool = False,
        remember: float = REMEMBER,
        schema: pa.Schema | None = None,
        batch: int = BATCH,
    ) -> None:
        super().__init__(make, parameters, schema, batch)
        if not isinstance(path, str) or not path:
            raise TypeError(f"path={shown_address(repr(path))}: must be a path, as a str that is not empty")
        self.path = path
        self.interval = None if interval is None else check_duration("interval", interval, above_zero=True)
        self.recursive = recursive
        self.remember = check_duration("remember", remember)

    def __repr__(self) -> str:
        return f"FromFolder({shown_address(self.path)!r})"

    @property
    def boundedness(self) -> Boundedness:
        """Bounded without an interval."""
        return Boundedness.BOUNDED if self.interval is None else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def checkpoint_serializer(self) -> Serializer[Known]:
        """Which files are known."""
        return KnownSerializer()

    def create_enumerator(self, context: EnumeratorContext[FolderSplit]) -> FolderEnumerator:
        """Knows no file."""
        return FolderEnumerator(context, Known(), self)

    def restore_enumerator(
        self, context: EnumeratorContext[FolderSplit], checkpoint: Known
    ) -> FolderEnumerator:
        """Knows files."""
        return FolderEnumerator(context, checkpoint, self)

    def payload(self, split: FolderSplit) -> str:
        """The path."""
        return split.path


class FolderEnumerator(SplitEnumerator[FolderSplit, Known]):
    """Finds files, those modified first in front."""

    def __init__(
        self, context: EnumeratorContext[FolderSplit], checkpoint: Known, source: FromFolder
    ) -> None:
        super().__init__(context, checkpoint)
        self.discovery_interval = source.interval
        self._source = source
        # The files of the latest look. A folder of a million files is listed once for all its splits.
        self._listed: list[FoundFile] | None = None

    def discover(self, checkpoint: Known, most: int) -> tuple[Sequence[FolderSplit], Known]:
        """The files that are new. Raises FileNotFoundError where there is no such folder."""
        source = self._source
        known = replace(checkpoint, seen=dict(checkpoint.seen))
        files = known.new(self._listed or ())[:most]
        if not files and (self._listed is None or source.interval is not None):
            filesystem, path = open_file_system(source.path, None)
            self._listed = listed = list_files(filesystem, path, recursive=source.recursive)
            if source.interval is None and known.until is None:
                # What comes after the first look is none of a bounded source's.
                newest = (listed[-1].modified, listed[-1].path) if listed else (-1, "")
                known = replace(known, until=newest)
            files = known.new(listed)[:most]
        known.seen.update((file.path, file.modified) for file in files)
        splits = [
            FolderSplit(f"{file.path}@{file.modified}", path=file.path, size=file.size) for file in files
        ]
        return splits, known.forgetting(source.remember, MOST_REMEMBERED)

    def advance(self, split: FolderSplit, limit: ReadLimit) -> FolderSplit | None:
        """The whole file: only the format knows how many records there are."""
        return split


class FormatReader(SplitReader[S]):
    """Reads the splits of a format, one after the other."""

    def __init__(self, source: _FormatSource[S, Any], context: FormatContext) -> None:
        self._source = source
        self._format = source.make_configured()
        self._split: S | None = None
        self._records: Generator[Any, None, None] | None = None
        self._read = 0
        self._woken = False
        if isinstance(self._format, RichInputFormat):
            self._format.set_runtime_context(context)
            try:
                self._format.open_input_format()
            except BaseException as error:
                failures = Failures(error)
                failures.run("closing the format", self._format.close_input_format)
                raise

    def handle_splits_changes(self, change: SplitsChange[S]) -> None:
        """Begin with a split, or leave it."""
        self._leave()
        if isinstance(change, SplitsAdded):
            (self._split,) = change.splits

    def fetch(self) -> Sequence[Fetched]:
        """The next records; fewer where it is woken up."""
        split = self._split
        assert split is not None
        if self._records is None:
            self._records = read_split(self._format, self._source.payload(split))
            self._read = split.start or 0
            for _ in islice(self._records, self._read):
                continue
        most = self._source.batch
        if split.stop is not None:
            most = min(most, split.stop - self._read)
        rows: list[Any] = []
        schema = self._source.schema
        finished = False
        while len(rows) < most and not self._woken:
            try:
                rows.append(row_of(next(self._records), schema))
            except StopIteration:
                finished = True
                break
        self._woken = False
        self._read += len(rows)
        finished = finished or self._read == split.stop
        if finished:
            self._leave()
        return [Fetched(split.split_id, rows, self._read, finished)] if rows or finished else []

    def wake_up(self) -> None:
        """End the fetch after the record that is being read. Any thread."""
        self._woken = True

    def close(self) -> None:
        """Close the split, and the format."""
        failures = Failures()
        failures.run("closing the split", self._leave)
        if isinstance(self._format, RichInputFormat):
            failures.run("closing the format", self._format.close_input_format)
        if failures.first is not None:
            raise failures.first

    def _leave(self) -> None:
        records, self._records, self._split = self._records, None, None
        if records is not None:
            records.close()
