"""Cuts a table into ranges of its key, all read in one snapshot: the enumerator of a scan.

The edges are quantiles of a sample of the table's pages, so that ranges have about as many rows each,
whatever the key's type and however its values lie. For "ctid", the place of a row in the table's file,
they are pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.postgres.client import begin_reading
from pillarbox.sources.connectors.postgres.held import hold
from pillarbox.sources.connectors.postgres.ranges import Ranges
from pillarbox.sources.connectors.postgres.split import PostgresSplit
from pillarbox.sources.enumerator import EnumeratorContext, SplitEnumerator

if TYPE_CHECKING:
    from pillarbox.sources.connectors.postgres.source import PostgresSource

Checkpoint = dict[str, Any]
"""edges: the keys between ranges, those before `next` are given out; snapshot; rows and bytes of a range."""

SPLIT_BYTES = 16 * 2**20
"""Of the table, that make a range where nobody has said how many ranges there are to be."""
SAMPLE = 100
"""Pages of the sample for each range: where rows lie in their key's order, a page says as much as one row."""
FACTS = """
select coalesce(sum(pg_relation_size(c.oid)), 0)::bigint, coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint,
       coalesce(sum(pg_relation_size(c.oid)) / current_setting('block_size')::int, 0)::bigint
from pg_class c
where c.oid = %(table)s or c.oid in (select relid from pg_partition_tree(%(table)s))
"""


class ScanEnumerator(SplitEnumerator[PostgresSplit, Checkpoint]):
    """The enumerator of a bounded `PostgresSource`. Holds the snapshot until it is closed, and on."""

    def __init__(
        self, source: PostgresSource, context: EnumeratorContext[PostgresSplit], checkpoint: Checkpoint
    ) -> None:
        super().__init__(context, checkpoint)
        self._source = source
        self._exporter: Any = None

    def discover(self, checkpoint: Checkpoint, most: int) -> tuple[Sequence[PostgresSplit], Checkpoint]:
        """The next ranges. The first call opens the snapshot and looks for the edges in it."""
        if not checkpoint:
            with self._source.address.asking(f"planning {self._source.table}"):
                checkpoint = self._plan()
        edges, begin = [None, *checkpoint["edges"], None], checkpoint["next"]
        splits = [
            PostgresSplit(
                f"{self._source.table}#{at}",
                edges[at],
                edges[at + 1],
                checkpoint["snapshot"],
                checkpoint["rows"],
                checkpoint["bytes"],
            )
            for at in range(begin, min(begin + most, len(edges) - 1))
        ]
        return splits, {**checkpoint, "next": begin + len(splits)}

    def _plan(self) -> Checkpoint:
        exporter, snapshot = None, None
        connection = self._source.address.connect()
        try:
            if self._source.consistent:
                # It does nothing else, and so holds no lock on the table.
                exporter = self._source.address.connect()
                begin_reading(exporter)
                snapshot = exporter.execute("select pg_export_snapshot()").fetchone()[0]
            begin_reading(connection, snapshot)
            ranges = Ranges.find(self._source, connection)
            if not self._source.consistent and ranges.key == "ctid":
                raise ValueError(
                    "consistent=False: the ctid of rows changes with them; give a key that does not change"
                )
            check_no_nulls(connection, ranges)
            size, rows, pages = connection.execute(FACTS, {"table": ranges.table.oid}).fetchone()
            parts = self._source.splits or max(1, ceil(size / SPLIT_BYTES))
            edges = self._edges(connection, ranges, parts, pages)
        except BaseException:
            if exporter is not None:
                exporter.close()
            raise
        finally:
            connection.close()
        self._exporter = exporter
        parts = len(edges) + 1
        return {
            "edges": edges,
            "next": 0,
            "snapshot": snapshot,
            "rows": rows // parts or None,
            "bytes": size // parts or None,
        }

    def _edges(self, connection: Any, ranges: Ranges, parts: int, pages: int) -> list[str]:
        """The keys that end the ranges, but the last."""
        from psycopg import sql

        if parts == 1:
            return []
        if ranges.key == "ctid":
            ends = sorted({pages * part // parts for part in range(1, parts)} - {0})
            return [f"({page - 1},65535)" for page in ends]
        sample: sql.Composable = sql.SQL("")
        share = 100 * SAMPLE * parts / max(1, pages)
        if share < 50 and ranges.table.kind in ("table", "partitioned table", "materialized view"):
            sample = sql.SQL("tablesample system ({})").format(sql.Literal(share))
        found = connection.execute(
            sql.SQL(
                "select (percentile_disc({}::float8[]) within group (order by {}))::text[] from {} {}"
            ).format(
                sql.Literal([part / parts for part in range(1, parts)]),
                sql.Identifier(ranges.key),
                ranges.relation,
                sample,
            )
        ).fetchone()[0]
        # In their order already; one that comes twice ends one range.
        return list(dict.fromkeys(edge for edge in found or () if edge is not None))

    def close(self) -> None:
        """Let the snapshot end, after `hold_snapshot` seconds."""
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            hold(exporter, self._source.hold_snapshot)


def check_no_nulls(connection: Any, ranges: Ranges) -> None:
    """Raise ValueError if there is a row whose key is NULL: it would be in no range."""
    from psycopg import sql

    if ranges.key == "ctid" or ranges.table.columns[ranges.key].not_null:
        return
    # What is no table cannot promise it.
    (found,) = connection.execute(
        sql.SQL("select exists (select from {} where {} is null)").format(
            ranges.relation, sql.Identifier(ranges.key)
        )
    ).fetchone()
    if found:
        raise ValueError(
            f"key={ranges.key!r}: is NULL in rows of {ranges.name!r}, which would be missing: choose another "
            "key, or leave these rows out in the view"
        )
