"""Arrow arrays of values of Python and NumPy, without the import of pandas. Any thread.

`pa.array` and `Array.to_numpy` import pandas with the first value, where it is installed, and a worker of
Spark has no other use for it: a fifth of a second and 40 MB a process. So plain columns are made of buffers
(`pillarbox.kernel.columns`), with the same results; what is left goes through Arrow.
"""

# Alternatives, and why they are worse. To hide pandas from Arrow (`sys.modules["pandas"] = None`) while it
# looks for it: it looks once, and a function that gives a Series to Arrow later gets other nulls. To have
# Arrow's JSON or IPC reader make the columns: text would be written and parsed for each value.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox.kernel import columns

Make: TypeAlias = Callable[[Sequence[Any]], "tuple[Any, ...] | None"]

_MAKE: dict[pa.DataType, Make] = {
    pa.bool_(): columns.booleans,
    pa.int8(): partial(columns.integers, width=1),
    pa.int16(): partial(columns.integers, width=2),
    pa.int32(): partial(columns.integers, width=4),
    pa.int64(): partial(columns.integers, width=8),
    pa.float32(): partial(columns.floats, width=4),
    pa.float64(): partial(columns.floats, width=8),
    pa.string(): partial(columns.sequences, is_text=True),
    pa.binary(): partial(columns.sequences, is_text=False),
}

_NUMBERS = {kind: np.dtype(kind.to_pandas_dtype()) for kind in _MAKE if pa.types.is_primitive(kind)}
del _NUMBERS[pa.bool_()]

_TYPES = {dtype: kind for kind, dtype in _NUMBERS.items()} | {
    np.dtype(kind.to_pandas_dtype()): kind for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the array of this type: that of `pa.array(values, kind)`. Raises as that does.

    values: Python values; None is null. Nobody changes a list meanwhile.
    """
    make = _MAKE.get(kind)
    made = None if make is None else make(values)
    if made is None:
        return pa.array(values, kind)
    nulls, *buffers = made
    return pa.Array.from_buffers(
        kind, len(values), [None if each is None else pa.py_buffer(each) for each in buffers], nulls
    )


def array_of_numpy(values: npt.NDArray[Any]) -> pa.Array:
    """Return the array of a NumPy array of one dimension, without a copy where it is contiguous."""
    if values.dtype == np.bool_ and values.ndim == 1:
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])
    kind = _TYPES.get(values.dtype)
    if kind is None or values.ndim != 1 or not values.dtype.isnative:
        return pa.array(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def numpy_of(array: pa.Array) -> npt.NDArray[Any] | None:
    """Return the values of an array of numbers as NumPy sees them, without a copy; None for another array.

    Nulls have any value. The array does not change, nor may the values.
    """
    dtype = _NUMBERS.get(array.type)
    if dtype is None:
        return None
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def flags_of(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Return the truth values of an array; null is False."""
    size = array.offset + len(array)
    validity, data = (
        None if each is None else np.unpackbits(np.frombuffer(each, np.uint8), count=size, bitorder="little")
        for each in array.buffers()
    )
    if data is None:
        # An array of no rows may have no buffers.
        return np.zeros(len(array), np.bool_)
    flags = data if validity is None else data & validity
    return flags[array.offset :].astype(np.bool_)


def imports_pandas(kinds: Iterable[pa.DataType], *, reading: bool) -> bool:
    """Return True if Arrow imports pandas for values of one of these types, and has not done so yet.

    reading: whether they are read from arrays; otherwise they are put into such.
    """
    if "pandas" in sys.modules:
        return False
    return any(_has_zone(kind) if reading else kind not in _MAKE for kind in kinds)


def _has_zone(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_zone(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _has_zone(kind.key_type) or _has_zone(kind.item_type)
    if hasattr(kind, "value_type"):
        return _has_zone(kind.value_type)
    return pa.types.is_timestamp(kind) and kind.tz is not None
