"""Rows of a slice of a row group of Parquet, decoded from the pages that hold them.

For `ParquetFormat`, on whichever thread reads the file. Blocks. Nothing here is shared between readings.
"""

# Arrow decodes a row group from its front: a slice of 10,000 rows at the end of a million costs the
# million. A column is a sequence of pages of some thousand rows, each of which can be decoded alone with
# the dictionary in front of them. Arrow has no call for it, so it gets a file in memory that has one column
# and only the pages of the slice: their bytes as they are, and a footer of its own.
#
# A column of maps, or of structs of several fields, has several leaves, whose pages begin at different rows.
# Each leaf gets a file of its own, in whose schema it has no siblings, and `parquet_leaves` makes the column
# of what Arrow reads of them. A file has the part of the column's type that its leaf has, in the words of
# Arrow's writer, so that the leaves have the types that they have in the column as Arrow reads it.
#
# What was there before: a worker kept the reading that ended within a row group, with its file open, for
# the slice behind it. That helped one worker that reads slice after slice, and no other.
#
# The footer, the offset index and the headers of pages are structs in Thrift's compact protocol. A package
# for Thrift wants the classes of Parquet's definitions; these are read and written as numbered fields
# instead, and the fields that no line here names are copied as they are.
#
# A column with lists or maps whose pages say how many values they hold and not how many rows is decoded from
# the front of the group, in a stream of its own: those of version 1, in a file without an offset index.
# Spark's files have one. So is a column that Arrow does not read leaf by leaf: one of an extension type, or
# of list views, that has several.

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import pyarrow as pa
from pyarrow import parquet as pq

from pillarbox.sources.connectors.parquet_leaves import leaf_types, merged

Fields: TypeAlias = "dict[int, tuple[int, Any]]"
"""A struct of Thrift: kind and value of each field by its number. A list is its elements' kind, and these."""

MAGIC = b"PAR1"
HEADER_BYTES = 2**10
"""Bytes read at once for the header of a page, which may hold the smallest and largest value of the page."""

TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, STRUCT = 1, 2, 3, 7, 8, 9, 12
INTEGERS = {4: "i16", 5: "i32", 6: "i64"}
I32, I64 = 5, 6
REPEATED = 2
OF_MAP, OF_LIST = 2, 3
"""The annotations of a group that is a map or a list: the field of the union in its field 10."""
ANNOTATED = {1: OF_MAP, 2: OF_MAP, 3: OF_LIST}
"""These by what its field 6 says, which is older."""
VALUES = 1
"""The number of the count of values in the own header of a data page."""
DATA_PAGES = {0: (5, VALUES, 2), 3: (8, 3, 4)}
"""Of the type of a data page: the number of its own header, and those of its rows' count and encoding in it.

Pages of version 1 have the count of values only, which is that of rows where nothing repeats.
"""
BY_DICTIONARY = {2, 8}
"""The encodings of pages that refer to the dictionary."""


class Page(NamedTuple):
    """A data page: its first row in the row group, the row behind it, and its place in the file."""

    row: int
    end: int
    offset: int
    nbytes: int


class Leaf(NamedTuple):
    """A leaf of a column: the elements of the schema from the column to it, and its number among all leaves.

    repeats: a row has any number of values, as a list has.
    """

    path: list[Fields]
    number: int
    repeats: bool


class PagedFile:
    """The footer of an open file, by which it reads slices of row groups. Confined to one thread at a time.

    file: with `seek` and `read`, of `size` bytes.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        tail = self._bytes(max(0, size - 8), 8)
        self._footer: Fields = {}
        # An encrypted footer ends otherwise.
        if tail[4:] == MAGIC:
            length = int.from_bytes(tail[:4], "little")
            self._footer, _ = read_struct(self._bytes(size - 8 - length, length), 0)
        self._columns = _columns_of(self._footer[2][1][1]) if self._footer else {}

    def column(
        self, field: pa.Field, group: int, start: int, stop: int, batch_rows: int
    ) -> Iterator[pa.Array] | None:
        """The rows `start` to `stop` of a row group of one column; None where pages cannot be read alone.

        field: the column, as Arrow has it in the schema of the file. Arrays of `batch_rows`, but for the
        last. Raises ArrowInvalid for pages that are broken, or not where the file says.
        """
        try:
            return self._column(field, group, start, stop, batch_rows)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, pa.ArrowException):
                raise
            raise pa.ArrowInvalid(
                f"column {field.name!r}: its pages in row group {group} cannot be found: "
                f"{type(error).__name__}"
            ) from error

    def _column(
        self, field: pa.Field, group: int, start: int, stop: int, batch_rows: int
    ) -> Iterator[pa.Array] | None:
        leaves, kinds = self._columns.get(field.name, []), leaf_types(field.type)
        if len(leaves) != len(kinds):
            return None
        row_group = self._footer[4][1][1][group]
        # Of all leaves, before the bytes of any are read.
        places = []
        for leaf in leaves:
            chunk = row_group[1][1][1][leaf.number]
            pages = self._pages(chunk, row_group[3][1], stop, leaf.repeats)
            if pages is None:
                return None
            places.append((chunk[3][1], pages))
        streams = []
        for leaf, kind, (meta, pages) in zip(leaves, kinds, places, strict=True):
            alone = field.with_type(kind)
            stream = self._leaf(leaf, alone, meta, pages, start, stop, batch_rows)
            if stream is None:
                return None
            streams.append(stream)
        return (merged(field.type, parts) for parts in zip(*streams, strict=True))

    def _leaf(
        self,
        leaf: Leaf,
        alone: pa.Field,
        meta: Fields,
        pages: list[Page],
        start: int,
        stop: int,
        batch_rows: int,
    ) -> Iterator[pa.Array] | None:
        """The rows of a leaf, as `alone`; None where Arrow reads it as something else."""
        begins, ends = _chunk_start(meta), pages[0].offset
        pages = [page for page in pages if page.end > start]
        first, last = pages[0], pages[-1]
        data = self._bytes(first.offset, last.offset + last.nbytes - first.offset)
        contents = [_content(data, page.offset - first.offset) for page in pages]
        # A writer whose dictionary is full goes on without one.
        needs_dictionary = any(encoding in BY_DICTIONARY for _, encoding in contents)
        dictionary = self._bytes(begins, ends - begins) if needs_dictionary else b""
        rows, values = last.end - first.row, sum(values for values, _ in contents)
        whole = _file_of(self._footer, leaf, alone, meta, dictionary, data, rows, values)
        parquet = pq.ParquetFile(pa.BufferReader(whole), coerce_int96_timestamp_unit="us")
        if parquet.schema_arrow.types != [alone.type]:
            return None
        batches = parquet.iter_batches(batch_rows, use_threads=False)
        arrays = (batch.column(0) for batch in batches)
        return stepped(arrays, start - first.row, stop - start, batch_rows)

    def _bytes(self, offset: int, count: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(count)

    def _pages(self, chunk: Fields, rows: int, stop: int, repeats: bool) -> list[Page] | None:
        """The data pages of a leaf in a row group of `rows`, up to that with the row before `stop`.

        By its offset index, or by their headers; None where these do not say how many rows a page has, and
        for pages in another file, or encrypted ones.
        """
        if 1 in chunk or 3 not in chunk:
            return None
        found: list[Page] = []
        if 4 in chunk and chunk[4][1] and chunk[5][1]:
            index, _ = read_struct(self._bytes(chunk[4][1], chunk[5][1]), 0)
            places = index[1][1][1]
            ends = [*(place[3][1] for place in places[1:]), rows]
            for place, end in zip(places, ends, strict=True):
                found.append(Page(place[3][1], end, place[1][1], place[2][1]))
                if end >= stop:
                    break
            return found
        offset, row = _chunk_start(chunk[3][1]), 0
        while row < stop:
            header, length = self._header(offset)
            nbytes = length + header[3][1]
            own, count, _ = DATA_PAGES.get(header[1][1], (0, 0, 0))
            if own:
                if repeats and count == VALUES:
                    return None
                begin = row
                row += header[own][1][count][1]
                found.append(Page(begin, row, offset, nbytes))
            offset += nbytes
        return found

    def _header(self, offset: int) -> tuple[Fields, int]:
        try:
            return read_struct(self._bytes(offset, HEADER_BYTES), 0)
        except IndexError:
            return read_struct(self._bytes(offset, 2**10 * HEADER_BYTES), 0)


def stepped(arrays: Iterator[pa.Array], skipped: int, rows: int, step: int) -> Iterator[pa.Array]:
    """Yield `rows` values behind the first `skipped` ones, in arrays of `step` but for the last."""
    held: list[pa.Array] = []
    while rows > 0:
        while (missing := min(step, rows) - sum(map(len, held))) > 0:
            array = next(arrays, None)
            if array is None:
                raise pa.ArrowInvalid(f"a column ends {missing} rows before its row group")
            passed = min(skipped, len(array))
            skipped -= passed
            held.append(array.slice(passed))
        whole = held[0] if len(held) == 1 else pa.concat_arrays(held)
        count = min(step, rows)
        yield whole.slice(0, count)
        held = [whole.slice(count)]
        rows -= count


def _columns_of(schema: list[Fields]) -> dict[str, list[Leaf]]:
    """The leaves of each top-level column, by its name."""
    found: dict[str, list[Leaf]] = {}
    open_groups: list[Fields] = []
    missing: list[int] = []
    number = 0
    for element in schema[1:]:
        children = element[5][1] if 5 in element else 0
        if children:
            open_groups.append(element)
            missing.append(children)
            continue
        # A group without fields has no leaf.
        if 1 in element:
            path = [*open_groups, element]
            repeats = any(each[3][1] == REPEATED for each in path)
            found.setdefault(path[0][4][1].decode(), []).append(Leaf(path, number, repeats))
            number += 1
        while missing:
            missing[-1] -= 1
            if missing[-1]:
                break
            missing.pop()
            open_groups.pop()
    return found


def _without_siblings(path: list[Fields]) -> list[Fields]:
    """The elements of a schema in which a leaf is alone. Maps are lists there."""
    found: list[Fields] = []
    above = 0
    for element in path:
        own, annotation = dict(element), _annotation(element)
        if 5 in element:
            own[5] = (I32, 1)
        if above == OF_MAP:
            # An entry. By some names it would itself be the element of the list, and its annotation, which
            # some writers give it, says nothing.
            own[4] = (BINARY, b"list")
            annotation = 0
            own.pop(6, None)
            own.pop(10, None)
        elif annotation == OF_MAP:
            own[6], own[10] = (I32, 3), (STRUCT, {OF_LIST: (STRUCT, {})})
        elif above == OF_LIST and 5 in element and element[5][1] > 1:
            # A group of several fields is the element of the list itself. One of one field is, by this name.
            own[4] = (BINARY, b"array")
        found.append(own)
        above = annotation
    return found


def _annotation(element: Fields) -> int:
    """OF_MAP, OF_LIST, or 0 for all else."""
    if 10 in element:
        return next((each for each in (OF_MAP, OF_LIST) if each in element[10][1]), 0)
    return ANNOTATED.get(element[6][1], 0) if 6 in element else 0


def _content(data: bytes, at: int) -> tuple[int, int]:
    """The number of values in the data page that begins at `at`, and their encoding.

    With those of nulls and empty lists.
    """
    header, _ = read_struct(data, at)
    own, _, encoding = DATA_PAGES[header[1][1]]
    return header[own][1][VALUES][1], header[own][1][encoding][1]


def _chunk_start(meta: Fields) -> int:
    """The place of the first page of a column in a row group, a dictionary if there is one."""
    # Some writers say 0 where there is none, and some leave it out and count it as the first data page.
    data: int = meta[9][1]
    dictionary: int = meta[11][1] if 11 in meta else 0
    return dictionary if 0 < dictionary < data else data


def _file_of(
    footer: Fields,
    leaf: Leaf,
    alone: pa.Field,
    meta: Fields,
    dictionary: bytes,
    data: bytes,
    rows: int,
    values: int,
) -> bytes:
    """A file of one leaf with these pages, which is read as `alone`."""
    begins = len(MAGIC)
    size = len(dictionary) + len(data)
    path = _without_siblings(leaf.path)
    own = {
        **{number: meta[number] for number in (1, 2, 4, 6)},
        3: (LIST, (BINARY, [element[4][1] for element in path])),
        5: (I64, values),
        7: (I64, size),
        9: (I64, begins + len(dictionary)),
        **({11: (I64, begins)} if dictionary else {}),
    }
    chunk: Fields = {2: (I64, begins), 3: (STRUCT, own)}
    group: Fields = {1: (LIST, (STRUCT, [chunk])), 2: meta[6], 3: (I64, rows)}
    root: Fields = {4: (BINARY, b"schema"), 5: (I32, 1)}
    arrow = b64encode(pa.schema([alone]).serialize())
    written: Fields = {
        1: footer[1],
        2: (LIST, (STRUCT, [root, *path])),
        3: (I64, rows),
        4: (LIST, (STRUCT, [group])),
        5: (LIST, (STRUCT, [{1: (BINARY, b"ARROW:schema"), 2: (BINARY, arrow)}])),
        # By the writer Arrow knows which of its files are to be read otherwise.
        **({6: footer[6]} if 6 in footer else {}),
    }
    end = b"".join(struct_bytes(written))
    return b"".join([MAGIC, dictionary, data, end, len(end).to_bytes(4, "little"), MAGIC])


# -- Thrift's compact protocol ---------------------------------------------------------------------


def read_struct(data: bytes, at: int) -> tuple[Fields, int]:
    """The struct that begins at `at`, and the place behind it. Raises IndexError if `data` ends before."""
    fields: Fields = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_integer(data, at)
        value: Any = None
        if kind not in (TRUE, FALSE):
            value, at = _read_value(data, at, kind)
        fields[number] = (kind, value)
    return fields, at + 1


def _read_value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in INTEGERS:
        return _read_integer(data, at)
    if kind == BINARY:
        length, at = _read_varint(data, at)
        return _read_bytes(data, at, length)
    if kind in (BYTE, DOUBLE):
        return _read_bytes(data, at, 1 if kind == BYTE else 8)
    if kind == STRUCT:
        return read_struct(data, at)
    if kind != LIST:
        raise pa.ArrowInvalid(f"the footer has a field of kind {kind}, which Parquet has none of")
    head, at = data[at], at + 1
    of, count = head & 15, head >> 4
    if count == 15:
        count, at = _read_varint(data, at)
    values = []
    for _ in range(count):
        # In a list a Boolean takes a byte.
        value, at = _read_value(data, at, BYTE if of in (TRUE, FALSE) else of)
        values.append(value)
    return (of, values), at


def _read_bytes(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    if at + count > len(data):
        raise IndexError(at + count)
    return data[at : at + count], at + count


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _read_integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def struct_bytes(fields: Fields) -> Iterator[bytes]:
    """Yield the bytes of a struct."""
    before = 0
    for number in sorted(fields):
        kind, value = fields[number]
        delta = number - before
        before = number
        yield bytes([delta << 4 | kind]) if delta < 16 else bytes([kind]) + _integer_bytes(number)
        if kind not in (TRUE, FALSE):
            yield from _value_bytes(kind, value)
    yield b"\0"


def _value_bytes(kind: int, value: Any) -> Iterator[bytes]:
    if kind in INTEGERS:
        yield _integer_bytes(value)
    elif kind == STRUCT:
        yield from struct_bytes(value)
    elif kind == LIST:
        of, values = value
        count = len(values)
        yield bytes([count << 4 | of]) if count < 15 else bytes([15 << 4 | of]) + _varint_bytes(count)
        yield from chain.from_iterable(
            _value_bytes(BYTE if of in (TRUE, FALSE) else of, each) for each in values
        )
    else:
        if kind == BINARY:
            yield _varint_bytes(len(value))
        yield value


def _varint_bytes(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _integer_bytes(value: int) -> bytes:
    return _varint_bytes(value << 1 if value >= 0 else (-value << 1) - 1)
