"""Digests of whole rows of Arrow data, by which a stream tells rows apart. Pure; any thread.

Two rows have one digest where each of their values is the same, and else two: a null is not the value next to
it, nor an empty list, -0.0 is not 0.0, and texts that a collation takes for equal are two.
"""

# Not Spark's `xxhash64`. It skips nulls, so that (null, '1') and ('1', null) have one hash in any two columns
# that may be null; it has 64 bits, and rows that collide are found by whoever looks for them. A row that is
# taken for another one gets its result where two executions see them in another order.
#
# Each value is written down so that what follows is told apart from it: whether it is there, then its bytes
# as Arrow has them, of its type's width, or behind their number. All rows of a stream have one schema, so
# types are not written. Values of fixed width of a row are put together by numpy: 0.6 us a row of four
# columns in all, the digest included.

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

DIGEST_BYTES = 16
"""Of BLAKE2b, for which nobody knows how to make two rows with one digest."""

Digests: TypeAlias = npt.NDArray[np.uint64]
"""Shape (rows, 2): each digest as two numbers, big-endian."""

_NULL, _THERE = b"\0", b"\1"


def row_digests(columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """The digests of rows, each of `DIGEST_BYTES` bytes, of columns of so many rows.

    Raises pyarrow's errors for a type that has no plain form.
    """
    begin = hashlib.blake2b(digest_size=DIGEST_BYTES).copy
    digests = []
    for content in _joined(columns, rows):
        each = begin()
        each.update(content)
        digests.append(each.digest())
    return pa.array(digests, pa.binary(DIGEST_BYTES))


def digests_of(column: pa.Array) -> Digests:
    """The digests in a column of them, as numbers that can be sorted."""
    whole = np.frombuffer(column.buffers()[1], ">u8").reshape(-1, 2)
    return whole[column.offset : column.offset + len(column)]


def _joined(columns: Sequence[pa.Array], rows: int) -> list[bytes]:
    """The values of each row, one after another."""
    pairs = [_fixed(column) for column in columns]
    fixed = [pair for pair in pairs if pair is not None]
    others = [_written(column) for column, pair in zip(columns, pairs, strict=True) if pair is None]
    if fixed:
        others.insert(0, _matrix(fixed, rows))
    if not others:
        return [b""] * rows
    return others[0] if len(others) == 1 else [*map(b"".join, zip(*others, strict=True))]


def _fixed(column: pa.Array) -> tuple[pa.Array, int] | None:
    """A column whose values all have one width, and that width in bytes; None for another."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _fixed(column.storage)
    if pa.types.is_boolean(kind):
        return pc.cast(column, pa.uint8()), 1
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return column, kind.bit_width // 8
    return None


def _matrix(fixed: Sequence[tuple[pa.Array, int]], rows: int) -> list[bytes]:
    """The values of columns of fixed width, in the bytes of each row."""
    width = sum(1 + size for _, size in fixed)
    matrix = np.zeros((rows, width), np.uint8)
    at = 0
    for column, size in fixed:
        there = np.ones(rows, bool)
        if column.null_count:
            there = column.is_valid().to_numpy(zero_copy_only=False)
        matrix[:, at] = there
        if size and rows:
            data = np.frombuffer(column.buffers()[1], np.uint8)
            values = data[column.offset * size : (column.offset + rows) * size].reshape(rows, size)
            # What stands behind a null is nothing.
            matrix[:, at + 1 : at + 1 + size] = values * there[:, None]
        at += 1 + size
    whole = matrix.tobytes()
    return [whole[start : start + width] for start in range(0, rows * width, width)]


def _written(column: pa.Array) -> list[bytes]:
    """The values of a column, each with a mark of whether it is there."""
    kind = column.type
    if (fixed := _fixed(column)) is not None:
        return _matrix([fixed], len(column))
    if isinstance(kind, pa.BaseExtensionType):
        return _written(column.storage)
    if pa.types.is_null(kind):
        return [_NULL] * len(column)
    if pa.types.is_dictionary(kind):
        return _written(column.dictionary_decode())
    if pa.types.is_struct(kind):
        return _marked(column, _joined(column.flatten(), len(column)))
    if pa.types.is_map(kind):
        return _of_lists(column, pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"]))
    if pa.types.is_fixed_size_list(kind):
        return _written(column.cast(pa.large_list(kind.value_type)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_lists(column, column.values)
    # Texts and bytes, however Arrow keeps them.
    contents = column.cast(pa.large_binary()).to_pylist()
    return [_NULL if content is None else _sized(content) for content in contents]


def _of_lists(column: pa.Array, values: pa.Array) -> list[bytes]:
    """The values of a column of lists, all of whose elements are in `values`."""
    offsets = column.offsets.to_pylist()
    first = offsets[0] if offsets else 0
    elements = _written(values.slice(first, offsets[-1] - first if offsets else 0))
    contents = [
        (end - start).to_bytes(8, "big") + b"".join(elements[start - first : end - first])
        for start, end in pairwise(offsets)
    ]
    return _marked(column, contents)


def _marked(column: pa.Array, contents: list[bytes]) -> list[bytes]:
    if not column.null_count:
        return [_THERE + content for content in contents]
    valid = column.is_valid().to_pylist()
    return [_THERE + content if there else _NULL for there, content in zip(valid, contents, strict=True)]


def _sized(content: bytes) -> bytes:
    return _THERE + len(content).to_bytes(8, "big") + content
