"""The buffers of Arrow columns, of lists of plain Python values. Any thread.

Arrow's own conversion imports pandas with the first value, where that is installed: a fifth of a second and
40 MB in each worker process. Arrow's columnar format, version 1.4, says what the buffers hold.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact
from libc.float cimport FLT_MAX
from libc.math cimport fabs, isfinite
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int* overflow) except? -1
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t* size) except NULL
    PyObject** PySequence_Fast_ITEMS(object)
    Py_ssize_t PySequence_Fast_GET_SIZE(object)


cdef bytes _room(Py_ssize_t size):
    """So many bytes, which the caller writes."""
    return PyBytes_FromStringAndSize(NULL, size)


cdef class _Rows:
    """The values of a column, and the bits of those that are there, which are made with the first null."""

    cdef object values
    cdef PyObject** items
    cdef Py_ssize_t count, nulls
    cdef bytes validity
    cdef uint8_t* at

    cdef inline int lacks(self, Py_ssize_t row) except -1:
        if self.at == NULL:
            self.validity = _room((self.count + 7) // 8)
            self.at = <uint8_t*>PyBytes_AS_STRING(self.validity)
            memset(self.at, 255, <size_t>((self.count + 7) // 8))
        self.at[row >> 3] &= <uint8_t>(~(1 << (row & 7)))
        self.nulls += 1
        return 0


cdef _Rows _rows_of(values):
    """The rows of a list or a tuple; None for anything else."""
    if not (PyList_CheckExact(values) or PyTuple_CheckExact(values)):
        return None
    cdef _Rows rows = _Rows()
    rows.values = values
    rows.items = PySequence_Fast_ITEMS(values)
    rows.count = PySequence_Fast_GET_SIZE(values)
    rows.nulls = 0
    rows.at = NULL
    return rows


def integers(values, int width):
    """The buffers of whole numbers of so many bytes each: (nulls, validity or None, data).

    None if a value is neither an int nor None, or does not fit; also for what is neither list nor tuple.
    """
    cdef _Rows rows = _rows_of(values)
    if rows is None:
        return None
    cdef Py_ssize_t count = rows.count, row
    cdef PyObject** items = rows.items
    cdef bytes data = _room(count * width)
    cdef char* to = PyBytes_AS_STRING(data)
    cdef int overflow = 0
    cdef long long number
    # The smallest one that does not fit.
    cdef long long end = (<long long>1) << (8 * width - 1) if width < 8 else 0
    for row in range(count):
        value = <object>items[row]
        if PyLong_CheckExact(value):
            number = PyLong_AsLongLongAndOverflow(value, &overflow)
            if overflow or (width < 8 and (number >= end or number < -end)):
                return None
        elif value is None:
            number = 0
            rows.lacks(row)
        else:
            return None
        if width == 8:
            (<int64_t*>to)[row] = number
        elif width == 4:
            (<int32_t*>to)[row] = <int32_t>number
        elif width == 2:
            (<int16_t*>to)[row] = <int16_t>number
        else:
            (<int8_t*>to)[row] = <int8_t>number
    return rows.nulls, rows.validity, data


def floats(values, int width):
    """The buffers of floating-point numbers of 4 or 8 bytes; as `integers`.

    None, too, for a number beyond what 4 bytes hold.
    """
    cdef _Rows rows = _rows_of(values)
    if rows is None:
        return None
    cdef Py_ssize_t count = rows.count, row
    cdef PyObject** items = rows.items
    cdef bytes data = _room(count * width)
    cdef char* to = PyBytes_AS_STRING(data)
    cdef double number
    for row in range(count):
        value = <object>items[row]
        if PyFloat_CheckExact(value):
            number = PyFloat_AS_DOUBLE(value)
        elif value is None:
            number = 0.0
            rows.lacks(row)
        else:
            return None
        if width == 8:
            (<double*>to)[row] = number
        elif isfinite(number) and fabs(number) > FLT_MAX:
            return None
        else:
            (<float*>to)[row] = <float>number
    return rows.nulls, rows.validity, data


def booleans(values):
    """The buffers of truth values, a bit each; as `integers`."""
    cdef _Rows rows = _rows_of(values)
    if rows is None:
        return None
    cdef Py_ssize_t count = rows.count, row
    cdef PyObject** items = rows.items
    cdef bytes data = _room((count + 7) // 8)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(data)
    memset(to, 0, <size_t>((count + 7) // 8))
    for row in range(count):
        value = <object>items[row]
        if value is True:
            to[row >> 3] |= <uint8_t>(1 << (row & 7))
        elif value is None:
            rows.lacks(row)
        elif value is not False:
            return None
    return rows.nulls, rows.validity, data


def sequences(values, bint is_text):
    """The buffers of texts, or of bytes: (nulls, validity or None, offsets of 4 bytes, data); as `integers`.

    None, too, for a text that is not UTF-8, and for more than 2 GiB.
    """
    cdef _Rows rows = _rows_of(values)
    if rows is None:
        return None
    cdef Py_ssize_t count = rows.count, row, size
    cdef PyObject** items = rows.items
    cdef bytes offsets = _room((count + 1) * 4)
    cdef int32_t* ends = <int32_t*>PyBytes_AS_STRING(offsets)
    cdef Py_ssize_t total = 0
    ends[0] = 0
    for row in range(count):
        value = <object>items[row]
        size = 0
        if is_text and PyUnicode_CheckExact(value):
            try:
                PyUnicode_AsUTF8AndSize(value, &size)
            except UnicodeEncodeError:
                return None
        elif not is_text and PyBytes_CheckExact(value):
            size = PyBytes_GET_SIZE(value)
        elif value is None:
            rows.lacks(row)
        else:
            return None
        total += size
        if total > INT32_MAX:
            return None
        ends[row + 1] = <int32_t>total
    cdef bytes data = _room(total)
    cdef char* to = PyBytes_AS_STRING(data)
    for row in range(count):
        value = <object>items[row]
        if value is None:
            continue
        if is_text:
            # Made in the first pass, and kept by the text.
            memcpy(to + ends[row], PyUnicode_AsUTF8AndSize(value, &size), <size_t>(ends[row + 1] - ends[row]))
        else:
            memcpy(to + ends[row], PyBytes_AS_STRING(value), <size_t>(ends[row + 1] - ends[row]))
    return rows.nulls, rows.validity, offsets, data
