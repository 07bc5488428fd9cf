"""Arrays of numbers as columns: embeddings for the most part, in all forms in which libraries give them.

Each is brought into a form that a whole chunk of them can be put together from, block by block: a NumPy
array, an Arrow array, or a short list. Pure: any thread.
"""

from __future__ import annotations

import array
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pillarbox.aio.errors import shorten

SHORT_LIST = 16
"""Elements up to which a list stays one; a longer one is made into an Arrow array when it comes."""

_ELEMENTS: dict[type[T.DataType], tuple[pa.DataType, str]] = {
    T.BooleanType: (pa.bool_(), "?"),
    T.ByteType: (pa.int8(), "i1"),
    T.ShortType: (pa.int16(), "i2"),
    T.IntegerType: (pa.int32(), "i4"),
    T.LongType: (pa.int64(), "i8"),
    T.FloatType: (pa.float32(), "f4"),
    T.DoubleType: (pa.float64(), "f8"),
}

_NUMBERS = [
    np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
]

MAX_ELEMENTS = 2**31 - 1
"""Elements of all arrays of an Arrow list column together."""


def is_vector(kind: T.DataType) -> TypeGuard[T.ArrayType]:
    """Return True if a type is an array of numbers or of booleans."""
    return isinstance(kind, T.ArrayType) and type(kind.elementType) in _ELEMENTS


_HALF = np.dtype(np.float16)


@functools.cache
def _values_of_halves() -> pa.Array:
    """The value of each float of 16 bits. Looking them up is three times as fast as NumPy's conversion."""
    return pa.array(np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32))


def _is_number(code: str, dtypes: frozenset[np.dtype[Any]]) -> bool:
    return code not in "uw" and np.dtype(code) in dtypes


class Vectors:
    """The arrays of numbers of one column.

    kind: the type of the column. element: makes of an element one that Arrow takes, or raises. fits: whether
    an element is one already.
    """

    def __init__(self, kind: T.ArrayType, element: Callable[[Any], Any], fits: Callable[[Any], bool]) -> None:
        self._element, name = _ELEMENTS[type(kind.elementType)]
        self._dtype = np.dtype(name)
        # What NumPy casts without a look at the values. Floats are rounded, as Arrow rounds them.
        floats = self._dtype.kind == "f"
        self._direct = frozenset(
            each
            for each in _NUMBERS
            if np.can_cast(each, self._dtype, "safe") or (floats and each.kind == "f")
        )
        self._codes = frozenset(each for each in array.typecodes if _is_number(each, self._direct))
        self._class = type(pa.array([], self._element))
        self._nullable = kind.containsNull
        self._is_whole = self._dtype.kind == "i"
        self._of_element = element
        self._fits = fits
        self.type = pa.list_(pa.field("element", self._element, nullable=kind.containsNull))

    def is_plain(self, value: Any) -> bool:
        """Return True if `column` takes this value as it is."""
        kind = type(value)
        if kind is np.ndarray:
            return value.ndim == 1 and value.dtype in self._direct
        if kind is array.array:
            return value.typecode in self._codes
        if kind is list:
            return len(value) <= SHORT_LIST and all(map(self._fits, value))
        return kind is self._class and (self._nullable or not value.null_count)

    def normal(self, value: Any) -> Any:
        """The value in a form that `column` takes. Raises TypeError, ValueError or an error of Arrow."""
        if isinstance(value, list | tuple):
            return self._of_list(value)
        if isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
            value = value.values
        if value is None:
            return None
        if isinstance(value, pa.ChunkedArray):
            value = value.combine_chunks()
        if type(value).__module__.startswith("pandas.") and not isinstance(value.dtype, np.dtype):
            # NumPy has no nulls.
            value = pa.array(getattr(value, "array", value))
        if isinstance(value, pa.Array):
            return self._checked(value if value.type == self._element else self._cast(value))
        if isinstance(value, array.array | memoryview) or hasattr(value, "__array__"):
            return self._of_array(np.asarray(value))
        if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Collection):
            raise TypeError(f"{shorten(value)}: an array must be a list, not {type(value).__name__}")
        return self._of_list(list(value))

    def _of_list(self, values: Sequence[Any]) -> pa.Array:
        # Arrow cuts what follows the point off where it makes integers of a list.
        if not self._is_whole or set(map(type, values)) <= {int}:
            try:
                return self._checked(pa.array(values, self._element))
            except (TypeError, ValueError, pa.ArrowException):
                # An element that only `element` knows, or one that is none.
                pass
        each = [None if value is None else self._of_element(value) for value in values]
        return self._checked(pa.array(each, self._element))

    def _of_array(self, values: np.ndarray[Any, Any]) -> Any:
        if values.ndim != 1:
            raise ValueError(f"an array of {values.ndim} dimensions: must have one")
        if values.dtype in self._direct:
            return values
        if values.dtype.kind not in "biuf":
            return self._of_list(values.tolist())
        if not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
            if values.dtype in self._direct:
                return values
        return self._cast(pa.array(values))

    def _cast(self, values: pa.Array) -> pa.Array:
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)) and not (
            pa.types.is_boolean(values.type) or pa.types.is_null(values.type)
        ):
            raise TypeError(f"an array of {values.type}: must be of numbers, as {self._element}")
        if pa.types.is_float16(values.type) and not values.null_count:
            return pa.array(values.to_numpy().astype(np.float32)).cast(self._element)
        return values.cast(self._element)

    def _checked(self, values: pa.Array) -> pa.Array:
        if values.null_count and not self._nullable:
            raise ValueError("null, but the schema says that elements are not")
        return values

    def exact(self, value: Any) -> Any:
        """A list, or a NumPy array of the very type: what Arrow takes inside of other containers."""
        value = value if self.is_plain(value) else self.normal(value)
        if isinstance(value, pa.Array):
            return value.to_pylist() if value.null_count else value.to_numpy(zero_copy_only=False)
        if isinstance(value, array.array):
            value = np.array(value)
        if isinstance(value, np.ndarray):
            with np.errstate(over="ignore"):
                return value.astype(self._dtype, copy=False)
        return value

    def is_exact(self, value: Any) -> bool:
        """Return True if a value is as `exact` gives it."""
        if type(value) is np.ndarray:
            return value.ndim == 1 and value.dtype == self._dtype
        return type(value) is list and all(map(self._fits, value))

    def column(self, values: Sequence[Any]) -> pa.Array:
        """The column of values that are None or in one of the forms of `normal`."""
        there = [value for value in values if value is not None]
        kinds = set(map(type, there))
        if kinds <= {list}:
            return pa.array(values, self.type)
        lengths = np.fromiter(map(len, there), np.int64, len(there))
        if kinds == {array.array}:
            # Only now, as its owner cannot make one larger while it is seen as another's.
            there = list(map(np.array if len(there) == 1 else np.asarray, there))
            kinds = {np.ndarray}
        if kinds == {np.ndarray}:
            elements = self._joined(there)
        elif len(kinds) == 1:
            elements = there[0] if len(there) == 1 else pa.concat_arrays(there)
        else:
            elements = pa.concat_arrays(list(map(self._elements, there)))
        if len(there) == len(values):
            return self._lists(lengths, elements)
        is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
        all_lengths = np.zeros(len(values), np.int64)
        all_lengths[is_there] = lengths
        return self._lists(all_lengths, elements, pa.array(~is_there))

    def matrix(self, rows: Any) -> pa.Array | None:
        """The column of the rows of a matrix, which is not copied if it has the right type.

        None for what is no matrix of numbers that are taken without a look at each.
        """
        if getattr(rows, "ndim", None) != 2 or not hasattr(rows, "__array__"):
            return None
        block = np.asarray(rows)
        if block.dtype not in self._direct:
            return None
        lengths = np.full(block.shape[0], block.shape[1], np.int64)
        return self._lists(lengths, self._joined([block.ravel()]))

    def _elements(self, value: Any) -> pa.Array:
        if isinstance(value, pa.Array):
            return value
        return pa.array(value, self._element) if type(value) is list else self._joined([np.array(value)])

    def _joined(self, parts: list[np.ndarray[Any, Any]]) -> pa.Array:
        if all(part.dtype == _HALF for part in parts):
            halves = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return _values_of_halves().take(pa.array(halves.view(np.uint16))).cast(self._element)
        with np.errstate(over="ignore"):
            if len(parts) == 1:
                return pa.array(parts[0].astype(self._dtype, copy=False))
            if self._dtype.kind == "b":
                return pa.array(np.concatenate(parts, dtype=self._dtype, casting="same_kind"))
            # Into memory of Arrow, which has some left of the last chunk: new pages cost more than a copy.
            length = sum(map(len, parts))
            buffer = pa.allocate_buffer(length * self._dtype.itemsize)
            elements = np.frombuffer(buffer, self._dtype)
            np.concatenate(parts, out=elements, casting="same_kind")
            return pa.Array.from_buffers(self._element, length, [None, buffer])

    def _lists(self, lengths: Any, elements: pa.Array, mask: pa.Array | None = None) -> pa.Array:
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if offsets[-1] > MAX_ELEMENTS:
            raise OverflowError(
                f"{offsets[-1]:,} elements in one batch of results: Arrow takes {MAX_ELEMENTS:,}"
            )
        return pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)), elements, type=self.type, mask=mask
        )
