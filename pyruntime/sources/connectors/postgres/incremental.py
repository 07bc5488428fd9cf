"""Follows a table by a column that only grows: the enumerator of an incremental read. See `settled`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.postgres.ranges import Ranges
from pillarbox.sources.connectors.postgres.settled import Settled
from pillarbox.sources.connectors.postgres.split import PostgresSplit
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator

if TYPE_CHECKING:
    from pillarbox.sources.connectors.postgres.source import PostgresSource

Checkpoint = dict[str, Any]
"""Empty, and then {"found": true}."""

CACHED = """
select cache_size from pg_sequences
where format('%%I.%%I', schemaname, sequencename) = pg_get_serial_sequence(%s, %s)
"""
WIDTH = """
select coalesce(sum(avg_width), 0)::int from pg_stats where schemaname = %s and tablename = %s
"""


class IncrementalEnumerator(SplitEnumerator[PostgresSplit, Checkpoint]):
    """The enumerator of an unbounded `PostgresSource`: one split, without an end."""

    def __init__(
        self, source: PostgresSource, context: EnumeratorContext[PostgresSplit], checkpoint: Checkpoint
    ) -> None:
        super().__init__(context, checkpoint)
        self._source = source
        self._connection: Any = None
        self._ranges: Ranges | None = None
        self._settled: Settled | None = None

    def discover(self, checkpoint: Checkpoint, most: int) -> tuple[Sequence[PostgresSplit], Checkpoint]:
        """The table, once."""
        if checkpoint:
            return (), checkpoint
        from psycopg import sql

        with self._source.address.asking(f"looking for {self._source.table}"):
            connection = self._source.address.connect()
            try:
                ranges = Ranges.find(self._source, connection)
                check_can_be_followed(self._source, connection, ranges)
                start = self._source.start
                if start == "latest":
                    start = connection.execute(ranges.greatest).fetchone()[0]
                elif start is not None:
                    # As the server writes it; refused now if it is none.
                    asked = sql.SQL("select {}::text").format(ranges.value(start))
                    start = connection.execute(asked).fetchone()[0]
            finally:
                connection.close()
        return (PostgresSplit(self._source.table, start),), {"found": True}

    def advance(self, split: PostgresSplit, limit: ReadLimit) -> PostgresSplit | None:
        """The rows that are settled, at most so many; more where the last have the same value."""
        try:
            with self._source.address.asking(f"looking for rows of {self._source.table}"):
                return self._advance(split, limit)
        except ConnectionError:
            self.close()
            raise

    def _advance(self, split: PostgresSplit, limit: ReadLimit) -> PostgresSplit | None:
        from psycopg import sql

        if self._connection is None or self._connection.closed:
            self._connection = self._source.address.connect()
            self._ranges = Ranges.find(self._source, self._connection)
            self._settled = Settled(self._ranges, everybody=self._source.waits_for_all(self._ranges.kind))
        assert self._ranges is not None and self._settled is not None
        connection, ranges = self._connection, self._ranges
        bound = self._settled.look(connection)
        if bound is None:
            return None
        width = max(
            1, connection.execute(WIDTH, [ranges.table.schema, ranges.table.name]).fetchone()[0] or 100
        )
        rows = [part for part in (limit.rows, limit.nbytes and max(1, limit.nbytes // width)) if part]
        key = sql.Identifier(ranges.key)
        condition = ranges.condition(split.start, bound)
        if split.stop is not None:
            condition = sql.SQL("{} and {}").format(condition, ranges.condition(None, split.stop))
        found = connection.execute(
            sql.SQL(
                "select max(k)::text, count(*) from (select {} k from {} where {} order by {} {}) z"
            ).format(
                key,
                ranges.relation,
                condition,
                key,
                sql.SQL("limit {}").format(sql.Literal(min(rows))) if rows else sql.SQL(""),
            )
        ).fetchone()
        if found[0] is None:
            return None
        return PostgresSplit(split.split_id, split.start, found[0], None, found[1], found[1] * width)

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def check_can_be_followed(source: PostgresSource, connection: Any, ranges: Ranges) -> None:
    """Raise ValueError where rows could be missed."""
    if ranges.key == "ctid" or ranges.table.kind not in ("table", "partitioned table"):
        raise ValueError(
            f"key={ranges.key!r} of {source.table!r}, a {ranges.table.kind}: must be a column, of a table, "
            "that only grows"
        )
    if ranges.kind in ("uuid", "text", "character varying"):
        raise ValueError(f"key={ranges.key!r} is {ranges.kind}: must be a number or a time that only grows")
    if connection.execute("select pg_is_in_recovery()").fetchone()[0]:
        raise ValueError(
            "this server is a standby: it does not know which transactions run on its primary, so rows could "
            "be missed; follow the primary"
        )
    from psycopg import sql

    name = sql.Identifier(ranges.table.schema, ranges.table.name).as_string(connection)
    found = connection.execute(CACHED, [name, ranges.key]).fetchone()
    if found is not None and found[0] > 1:
        raise ValueError(
            f"key={ranges.key!r}: its sequence has CACHE {found[0]}, so that sessions take values ahead and "
            "rows could be missed: alter it to CACHE 1, or follow another column"
        )
