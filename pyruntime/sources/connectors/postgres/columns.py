"""What a table is: its columns, their types in Arrow, its key. Asks the catalogue; on any thread.

Types that Arrow has no equal for are refused, with the column's name: `casts` says as what they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

CAST = re.compile(r"[a-z_][a-z0-9_. ]*(\(\d+(, ?\d+)?\))?", re.IGNORECASE)
KEYS = {
    "smallint", "integer", "bigint", "numeric", "uuid", "text", "character varying", "date",
    "timestamp without time zone", "timestamp with time zone",
}  # fmt: skip
WHOLE = {"smallint", "integer", "bigint"}
TEXTS = {
    "text", "character varying", "character", '"char"', "name", "uuid", "json", "jsonb", "xml", "inet",
    "cidr", "macaddr",
}  # fmt: skip
TABLES = {"r": "table", "p": "partitioned table", "m": "materialized view", "v": "view", "f": "foreign table"}

TABLE = """
select c.oid, c.relkind::text, n.nspname, c.relname
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass(%s)
"""
COLUMNS = """
select a.attname, a.attnotnull, coalesce(b.typtype, t.typtype)::text,
       case when b.oid is null then format_type(a.atttypid, a.atttypmod)
            else format_type(b.oid, t.typtypmod) end,
       exists (select from pg_index i where i.indrelid = a.attrelid and i.indisunique and i.indimmediate
               and i.indisvalid and i.indpred is null and i.indnkeyatts = 1 and i.indkey[0] = a.attnum),
       exists (select from pg_index i where i.indrelid = a.attrelid and i.indisprimary
               and i.indnkeyatts = 1 and i.indkey[0] = a.attnum)
from pg_attribute a join pg_type t on t.oid = a.atttypid
left join pg_type b on b.oid = nullif(t.typbasetype, 0)
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""


@dataclass(frozen=True)
class Column:
    """A column as the catalogue has it. `sort` is its type without a length."""

    name: str
    kind: str
    is_enum: bool
    not_null: bool
    unique: bool
    primary: bool

    @property
    def sort(self) -> str:
        """The type without its length or precision."""
        return re.sub(r"\([^)]*\)", "", self.kind)


@dataclass(frozen=True)
class Table:
    """A table, or what can be read as one: its columns by name, in their order."""

    oid: int
    kind: str
    schema: str
    name: str
    columns: dict[str, Column]


def find_table(connection: Any, name: str) -> Table:
    """What the catalogue knows of it. Raises ValueError if there is none."""
    found = connection.execute(TABLE, [name]).fetchone()
    if found is None or found[1] not in TABLES:
        raise ValueError(f"table={name!r}: there is no such table or view, or it is not to be seen")
    rows = connection.execute(COLUMNS, [found[0]]).fetchall()
    columns = [
        Column(column, kind, sort == "e", not_null, unique, primary)
        for column, not_null, sort, kind, unique, primary in rows
    ]
    return Table(found[0], TABLES[found[1]], found[2], found[3], {each.name: each for each in columns})


def find_key(table: Table, name: str, key: str | None) -> str:
    """The column that orders the rows: `key`, or the primary key, or "ctid". Raises ValueError."""
    if key is None:
        good = [column.name for column in table.columns.values() if column.primary and column.sort in KEYS]
        if good or table.kind in ("table", "materialized view"):
            return good[0] if good else "ctid"
        raise ValueError(f"table={name!r} is a {table.kind} and has no primary key of one column: give key")
    if key == "ctid":
        if table.kind not in ("table", "materialized view"):
            raise ValueError(f"key='ctid': the rows of {name!r}, a {table.kind}, cannot be told apart by it")
        return key
    column = table.columns.get(key)
    if column is None:
        raise ValueError(f"key={key!r}: {name!r} has no such column, but {', '.join(table.columns)}")
    if column.sort not in KEYS:
        raise ValueError(f"key={key!r} is {column.kind}: must be one of {', '.join(sorted(KEYS))}")
    if not column.not_null and table.kind not in ("view", "foreign table", "materialized view"):
        raise ValueError(f"key={key!r}: must be NOT NULL, or rows would be missing")
    return key


def arrow_type(name: str, kind: str, is_enum: bool) -> pa.DataType:
    """The type in Arrow of a type as `format_type` writes it. Raises ValueError that names the column."""
    import pyarrow as pa

    sort = re.sub(r"\([^)]*\)", "", kind)
    simple = {
        "smallint": pa.int16(),
        "integer": pa.int32(),
        "bigint": pa.int64(),
        "oid": pa.int64(),
        "real": pa.float32(),
        "double precision": pa.float64(),
        "boolean": pa.bool_(),
        "bytea": pa.binary(),
        "date": pa.date32(),
        "time without time zone": pa.time64("us"),
        "timestamp without time zone": pa.timestamp("us"),
        "timestamp with time zone": pa.timestamp("us", "UTC"),
    }
    if sort in simple:
        return simple[sort]
    if sort in TEXTS or is_enum:
        return pa.string()
    sized = re.fullmatch(r"numeric\((\d+), ?(\d+)\)", kind)
    if sized is not None and int(sized[1]) <= 38:
        return pa.decimal128(int(sized[1]), int(sized[2]))
    better = "numeric(38,9)" if sort == "numeric" else "text"
    raise ValueError(
        f"column {name!r} is {kind}, which Arrow has no type for: say as what it is to be read, for example "
        f"casts={{{name!r}: {better!r}}}, or leave it out of columns"
    )


def choose_columns(
    connection: Any, table: Table, columns: Sequence[str] | None, casts: Mapping[str, str]
) -> list[tuple[str, str | None, pa.DataType]]:
    """Name, cast and Arrow type of each column that is read. Raises ValueError that names the column."""
    for name in [*(columns or ()), *casts]:
        if name not in table.columns:
            raise ValueError(f"column {name!r}: there is none; there are {', '.join(table.columns)}")
    chosen: list[tuple[str, str | None, pa.DataType]] = []
    for name in columns or table.columns:
        column, cast = table.columns[name], casts.get(name)
        if cast is None:
            chosen.append((name, None, arrow_type(name, column.kind, column.is_enum)))
            continue
        kind = connection.execute(f"select pg_typeof(null::{cast})::text").fetchone()[0]
        sized = re.search(r"\(.*\)", cast)
        chosen.append((name, cast, arrow_type(name, kind + (sized[0] if sized else ""), False)))
    return chosen


def check_casts(casts: Mapping[str, str]) -> dict[str, str]:
    """The casts, if each is the name of a type. Raises ValueError."""
    for name, cast in casts.items():
        if not isinstance(cast, str) or not CAST.fullmatch(cast):
            raise ValueError(
                f"casts={{{name!r}: {cast!r}}}: must be the name of a type, such as numeric(20,4)"
            )
    return dict(casts)
