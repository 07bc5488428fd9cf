"""PostgreSQL as a source: `PostgresSource`. A value that pickles; any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.options import Options
from pillarbox.sources.connectors.postgres.client import PostgresAddress
from pillarbox.sources.connectors.postgres.columns import check_casts
from pillarbox.sources.connectors.postgres.incremental import IncrementalEnumerator
from pillarbox.sources.connectors.postgres.ranges import Ranges
from pillarbox.sources.connectors.postgres.reader import PostgresReader
from pillarbox.sources.connectors.postgres.scan import ScanEnumerator
from pillarbox.sources.connectors.postgres.split import PostgresSplit
from pillarbox.sources.enumerator import EnumeratorContext, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.sources.source import Boundedness, Source

if TYPE_CHECKING:
    import pyarrow as pa

MODES = ("scan", "incremental")
WAITS = ("writers", "transactions")


class PostgresSource(Source[PostgresSplit, dict[str, Any]]):
    """Rows of a table: all that are there, or those that come. PostgreSQL 13 or later.

    conninfo: see `PostgresAddress`; the password is never shown, and `password_env` names an environment
        variable that holds it. table: its name as in SQL, with its schema or without.
    mode: "scan" reads the table once, in ranges of its key; "incremental" follows a column that only grows.
    columns: those that are read; None is all. casts: as which type of PostgreSQL a column is read.
    key: for a scan, what its ranges are of: an int, numeric, uuid, text, date or timestamp column, which for
        views must be NOT NULL and should have few equal values; None is the primary key, or else "ctid". For
        an incremental read, the column that grows.
    splits: how many ranges; None is one for each 16 MiB of the table. consistent: whether all ranges are
    read in one snapshot, which the enumerator holds open. Without, each has
        a snapshot of its own, and rows that change meanwhile may be there twice or not at all.
    hold_snapshot: seconds for which that snapshot is held after all ranges were given out, for tasks that
    begin
        then, or are run again. Meanwhile VACUUM keeps what it shows. 8 at most are held by one process.
    start: for an incremental read: None for the first row, "latest", or a value behind which it begins.
    wait_for: which transactions may still bring rows with smaller values: "writers" of the table, if values
        are taken by its INSERTs; "transactions", all, if values are taken before, as `now()` is. None: by the
        column's type, "writers" for numbers.
    poll_interval: seconds between two looks for new rows, in a task.

    Raises TypeError or ValueError for a bad argument, ImportError without the package `psycopg`.
    """

    split_type = PostgresSplit

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        mode: str = "scan",
        columns: Sequence[str] | None = None,
        casts: Mapping[str, str] | None = None,
        key: str | None = None,
        splits: int | None = None,
        consistent: bool = True,
        hold_snapshot: float = 600.0,
        start: str | None = None,
        wait_for: str | None = None,
        poll_interval: float = 1.0,
        password_env: str | None = None,
    ) -> None:
        self.address = PostgresAddress(conninfo, password_env)
        if not isinstance(table, str) or not table:
            raise TypeError(f"table={table!r}: must be the name of a table")
        if mode not in MODES:
            raise ValueError(f"mode={mode!r}: must be one of {', '.join(MODES)}")
        if columns is not None and (isinstance(columns, str) or not columns):
            raise TypeError(f"columns={columns!r}: must be a list of names, or None for all")
        if mode == "incremental" and key is None:
            raise ValueError("key=None: mode='incremental' needs the column that grows")
        if wait_for not in (None, *WAITS):
            raise ValueError(f"wait_for={wait_for!r}: must be one of {', '.join(WAITS)}, or None")
        if splits is not None and (isinstance(splits, bool) or not isinstance(splits, int)):
            raise TypeError(f"splits={splits!r}: must be an int or None")
        if splits is not None and splits < 1:
            raise ValueError(f"splits={splits}: must be at least 1")
        if not 0 <= hold_snapshot <= TIMEOUT_MAX:
            raise ValueError(f"hold_snapshot={hold_snapshot!r}: must be seconds, 0 or more, and finite")
        if not 0 < poll_interval <= TIMEOUT_MAX:
            raise ValueError(f"poll_interval={poll_interval!r}: must be seconds above 0, and finite")
        for name, value, belongs in (
            ("splits", splits, "scan"),
            ("start", start, "incremental"),
            ("wait_for", wait_for, "incremental"),
        ):
            if value is not None and mode != belongs:
                raise ValueError(f"{name}={value!r}: is for mode={belongs!r}")
        self.table = table
        self.mode = mode
        self.columns = None if columns is None else list(columns)
        self.casts = check_casts(casts or {})
        self.key = key
        self.splits = splits
        self.consistent = bool(consistent)
        self.hold_snapshot = float(hold_snapshot)
        self.start = start
        self.wait_for = wait_for
        self.poll_interval = float(poll_interval)

    def __repr__(self) -> str:
        return f"<{self.mode} of {self.table} in {self.address!r}>"

    def waits_for_all(self, kind: str) -> bool:
        """Whether a read by a column of this type waits for all transactions."""
        if self.wait_for is not None:
            return self.wait_for == "transactions"
        return kind.startswith(("timestamp", "date"))

    @property
    def boundedness(self) -> Boundedness:
        """A scan ends."""
        return Boundedness.BOUNDED if self.mode == "scan" else Boundedness.CONTINUOUS_UNBOUNDED

    def arrow_schema(self) -> pa.Schema:
        """The columns. Asks the server; raises ValueError for one that Arrow has no type for."""
        with self.address.asking(f"looking for {self.table}"):
            connection = self.address.connect()
            try:
                return Ranges.find(self, connection).schema
            finally:
                connection.close()

    def create_enumerator(
        self, context: EnumeratorContext[PostgresSplit]
    ) -> SplitEnumerator[PostgresSplit, dict[str, Any]]:
        """The enumerator of a new run."""
        return self.restore_enumerator(context, {})

    def restore_enumerator(
        self, context: EnumeratorContext[PostgresSplit], checkpoint: dict[str, Any]
    ) -> SplitEnumerator[PostgresSplit, dict[str, Any]]:
        """The enumerator of a run that goes on. The snapshot of an earlier one is gone; see `consistent`."""
        if self.mode == "scan":
            return ScanEnumerator(self, context, checkpoint)
        return IncrementalEnumerator(self, context, checkpoint)

    def create_reader(self, context: ReaderContext) -> SourceReader[PostgresSplit]:
        """A reader with one connection, which reads one range after the other."""
        return FetchingReader(
            context,
            lambda: PostgresReader(self, context.schema),
            threading=Threading.ONE_SPLIT_AT_A_TIME,
        )

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> PostgresSource:
        """See `Source.from_options`. The options are the arguments, `url` for `conninfo`.

        `columns` are parted by commas, `casts` by semicolons, as in "price numeric(20,4); note text".
        A schema that the user gives names the columns.
        """
        given = Options(options)
        splits = given.text("splits")
        casts = {}
        for word in filter(None, (each.strip() for each in (given.text("casts") or "").split(";"))):
            name, _, cast = word.partition(" ")
            if not cast:
                raise ValueError(
                    f"option 'casts' has {word!r}: must be columns and types, as in \"price numeric(20,4); "
                    'note text"'
                )
            casts[name] = cast.strip()
        columns = given.words("columns")
        if columns is None and schema is not None:
            columns = schema.names
        source = cls(
            given.text("url", required=True),
            given.text("table", required=True),
            mode=given.text("mode") or "scan",
            columns=columns,
            casts=casts,
            key=given.text("key"),
            splits=None if splits is None else Options({"splits": splits}).number("splits", int, 1),
            consistent=given.flag("consistent", True),
            hold_snapshot=given.number("hold_snapshot", float, 600.0),
            start=given.text("start"),
            wait_for=given.text("wait_for"),
            poll_interval=given.number("poll_interval", float, 1.0),
            password_env=given.text("password_env"),
        )
        given.check_all_read()
        return source
