"""Rows of a slice of a row group of Parquet, decoded from the pages that hold them.

For `ParquetFormat`, on whichever thread reads the file. Blocks. Nothing here is shared between readings.
"""

# Arrow decodes a row group from its front: a slice of 10,000 rows at the end of a million costs the
# million. A column is a sequence of pages of some thousand rows, each of which can be decoded alone with
# the dictionary in front of them. Arrow has no call for it, so it gets a file in memory that has one column
# and only the pages of the slice: their bytes as they are, and a footer of its own.
#
# What was there before: a worker kept the reading that ended within a row group, with its file open, for
# the slice behind it. That helped one worker that reads slice after slice, and no other.
#
# The footer, the offset index and the headers of pages are structs in Thrift's compact protocol. A package
# for Thrift wants the classes of Parquet's definitions; these are read and written as numbered fields
# instead, and the fields that no line here names are copied as they are.
#
# A column of maps, or of structs of several fields, has several leaves whose pages begin at different rows:
# no such file can be made of it. It is decoded from the front of the group, in a stream of its own. So is a
# column of lists whose pages say how many values they hold and not how many rows: those of version 1, in a
# file without an offset index. Spark's files have one.

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import pyarrow as pa
from pyarrow import parquet as pq

Fields: TypeAlias = "dict[int, tuple[int, Any]]"
"""A struct of Thrift: kind and value of each field by its number. A list is its elements' kind, and these."""

MAGIC = b"PAR1"
HEADER_BYTES = 2**10
"""Bytes read at once for the header of a page, which may hold the smallest and largest value of the page."""

TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, STRUCT = 1, 2, 3, 7, 8, 9, 12
INTEGERS = {4: "i16", 5: "i32", 6: "i64"}
I32, I64 = 5, 6
REPEATED = 2
VALUES = 1
"""The number of the count of values in the own header of a data page."""
DATA_PAGES = {0: (5, VALUES), 3: (8, 3)}
"""Of the type of a data page: the number of its own header, and that of its count of rows in there.

Pages of version 1 have the count of values only, which is that of rows where nothing repeats.
"""


class Page(NamedTuple):
    """A data page: its first row in the row group, the row behind it, and its place in the file."""

    row: int
    end: int
    offset: int
    nbytes: int


class Leaf(NamedTuple):
    """A column with one leaf: its elements of the schema, and the number of the leaf among all of the file.

    repeats: a row has any number of values, as a list has.
    """

    elements: list[Fields]
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
        self._leaves = _leaves_of(self._footer[2][1][1]) if self._footer else {}

    def column(
        self, name: str, group: int, start: int, stop: int, batch_rows: int
    ) -> Iterator[pa.Array] | None:
        """The rows `start` to `stop` of a row group of one column; None where pages cannot be read alone.

        Arrays of `batch_rows`, but for the last. Raises ArrowInvalid for pages that are broken, or not where
        the file says.
        """
        try:
            return self._column(name, group, start, stop, batch_rows)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, pa.ArrowException):
                raise
            raise pa.ArrowInvalid(
                f"column {name!r}: its pages in row group {group} cannot be found: {type(error).__name__}"
            ) from error

    def _column(
        self, name: str, group: int, start: int, stop: int, batch_rows: int
    ) -> Iterator[pa.Array] | None:
        leaf = self._leaves.get(name)
        if leaf is None:
            return None
        row_group = self._footer[4][1][1][group]
        chunk = row_group[1][1][1][leaf.number]
        if 1 in chunk or 3 not in chunk:
            # In another file, or encrypted.
            return None
        pages = self._pages(chunk, row_group[3][1], stop, leaf.repeats)
        if pages is None:
            return None
        begins = _chunk_start(chunk[3][1])
        dictionary = self._bytes(begins, pages[0].offset - begins)
        pages = [page for page in pages if page.end > start]
        first, last = pages[0], pages[-1]
        data = self._bytes(first.offset, last.offset + last.nbytes - first.offset)
        rows = last.end - first.row
        values = sum(_values_of(data, page.offset - first.offset) for page in pages) if leaf.repeats else rows
        whole = _file_of(self._footer, leaf, chunk[3][1], dictionary, data, rows, values)
        batches = pq.ParquetFile(pa.BufferReader(whole), coerce_int96_timestamp_unit="us").iter_batches(
            batch_rows, use_threads=False
        )
        arrays = (batch.column(0) for batch in batches)
        return stepped(arrays, start - first.row, stop - start, batch_rows)

    def _bytes(self, offset: int, count: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(count)

    def _pages(self, chunk: Fields, rows: int, stop: int, repeats: bool) -> list[Page] | None:
        """The data pages of a column in a row group of `rows`, up to that with the row before `stop`.

        By its offset index, or by their headers; None where these do not say how many rows a page has.
        """
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
            own, count = DATA_PAGES.get(header[1][1], (0, 0))
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


def _leaves_of(schema: list[Fields]) -> dict[str, Leaf]:
    """The top-level columns that have one leaf, by name."""
    found: dict[str, Leaf] = {}
    at, number = 1, 0
    while at < len(schema):
        begin, first, open_nodes = at, number, 1
        while open_nodes:
            children = schema[at][5][1] if 5 in schema[at] else 0
            number += not children
            open_nodes += children - 1
            at += 1
        if number == first + 1:
            elements = schema[begin:at]
            repeats = any(element[3][1] == REPEATED for element in elements)
            found[elements[0][4][1].decode()] = Leaf(elements, first, repeats)
    return found


def _values_of(data: bytes, at: int) -> int:
    """The number of values in the data page that begins at `at`, those of nulls and empty lists included."""
    header, _ = read_struct(data, at)
    values: int = header[DATA_PAGES[header[1][1]][0]][1][VALUES][1]
    return values


def _chunk_start(meta: Fields) -> int:
    """The place of the first page of a column in a row group, a dictionary if there is one."""
    # Some writers say 0 where there is none, and some leave it out and count it as the first data page.
    data: int = meta[9][1]
    dictionary: int = meta[11][1] if 11 in meta else 0
    return dictionary if 0 < dictionary < data else data


def _file_of(
    footer: Fields, leaf: Leaf, meta: Fields, dictionary: bytes, data: bytes, rows: int, values: int
) -> bytes:
    """A file of one column with these pages."""
    begins = len(MAGIC)
    size = len(dictionary) + len(data)
    own = {
        **{number: meta[number] for number in (1, 2, 3, 4, 6)},
        5: (I64, values),
        7: (I64, size),
        9: (I64, begins + len(dictionary)),
        **({11: (I64, begins)} if dictionary else {}),
    }
    chunk: Fields = {2: (I64, begins), 3: (STRUCT, own)}
    group: Fields = {1: (LIST, (STRUCT, [chunk])), 2: meta[6], 3: (I64, rows)}
    root: Fields = {4: (BINARY, b"schema"), 5: (I32, 1)}
    written: Fields = {
        1: footer[1],
        2: (LIST, (STRUCT, [root, *leaf.elements])),
        3: (I64, rows),
        4: (LIST, (STRUCT, [group])),
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
