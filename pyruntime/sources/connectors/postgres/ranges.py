"""How a range of rows is asked for: the SQL of it. A value, any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.postgres.columns import WHOLE, Table, choose_columns, find_key, find_table

if TYPE_CHECKING:
    import pyarrow as pa

    from pillarbox.sources.connectors.postgres.source import PostgresSource


@dataclass(frozen=True)
class Ranges:
    """A table with the columns that are read of it, and the key that orders it."""

    name: str
    table: Table
    key: str
    kind: str
    """The type of the key."""
    chosen: list[tuple[str, str | None, Any]]

    @classmethod
    def find(cls, source: PostgresSource, connection: Any, asked: pa.Schema | None = None) -> Ranges:
        """Those of a source. Asks the catalogue; raises ValueError."""
        table = find_table(connection, source.table)
        key = find_key(table, source.table, source.key)
        columns = source.columns if asked is None else asked.names
        chosen = choose_columns(connection, table, columns, source.casts)
        return cls(source.table, table, key, "tid" if key == "ctid" else table.columns[key].sort, chosen)

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        import pyarrow as pa

        return pa.schema(
            [
                pa.field(name, kind, nullable=not self.table.columns[name].not_null)
                for name, _, kind in self.chosen
            ]
        )

    @property
    def key_column(self) -> int | None:
        """Which of the columns has the key in a form that Python writes as PostgreSQL does; None if none."""
        names = [name for name, cast, _ in self.chosen if cast is None]
        if self.kind in WHOLE and self.key in names:
            return [name for name, _, _ in self.chosen].index(self.key)
        return None

    @property
    def relation(self) -> Any:
        """The table, as SQL."""
        from psycopg import sql

        return sql.Identifier(self.table.schema, self.table.name)

    @property
    def greatest(self) -> Any:
        """The statement that reads the greatest key, as text."""
        from psycopg import sql

        return sql.SQL("select max({})::text from {}").format(sql.Identifier(self.key), self.relation)

    def condition(self, start: str | None, stop: str | None) -> Any:
        """Behind `start` and up to `stop`."""
        from psycopg import sql

        key, parts = sql.Identifier(self.key), []
        for sign, edge in ((">", start), ("<=", stop)):
            if edge is not None:
                parts.append(sql.SQL("{} {} {}").format(key, sql.SQL(sign), self.value(edge)))
        return sql.SQL(" and ").join(parts) if parts else sql.SQL("true")

    def value(self, edge: str) -> Any:
        """A key as a literal of its type."""
        from psycopg import sql

        return sql.SQL("{}::{}").format(sql.Literal(edge), sql.SQL(self.kind))

    def copy(self, start: str | None, stop: str | None) -> Any:
        """The statement that reads the rows behind `start` up to `stop`, in the key's order."""
        from psycopg import sql

        what = [
            sql.Identifier(name)
            if cast is None
            else sql.SQL("{}::{}").format(sql.Identifier(name), sql.SQL(cast))
            for name, cast, _ in self.chosen
        ]
        if self.key_column is None:
            what.append(sql.SQL("{}::text").format(sql.Identifier(self.key)))
        # Qualified, for a bare name would be that of an output column, and the order that of its text.
        return sql.SQL("copy (select {} from {} r where {} order by r.{}) to stdout (format csv)").format(
            sql.SQL(", ").join(what),
            self.relation,
            self.condition(start, stop),
            sql.Identifier(self.key),
        )
