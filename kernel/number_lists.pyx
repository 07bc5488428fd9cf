"""Lists of numbers taken out of JSON as float32, for vectors sent as decimal numbers. Any thread."""

from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stddef cimport size_t


cdef extern from "pillarbox_number_lists.h" namespace "pillarbox" nogil:
    cdef cppclass Buffer:
        char* data() noexcept
        size_t size() noexcept

    cdef struct number_lists_t:
        Buffer floats
        Buffer ends
        Buffer rest
        size_t count

    cdef cppclass NumberListReader:
        NumberListReader(const char* text, size_t size) noexcept
        bint take(number_lists_t& found) noexcept


# To get the GIL back may take longer than this.
cdef enum:
    MIN_BYTES_WITHOUT_GIL = 65536


cdef object writable(Buffer& buffer):
    return PyByteArray_FromStringAndSize(buffer.data(), <Py_ssize_t>buffer.size())


def take_number_lists(bytes text not None):
    """Take the lists of numbers out of a text of JSON; None if it has none that can be taken.

    Returns the text with a mark in place of each list, a float that begins with -0.0e-0 and ends with the
    place of the list; the numbers of all, float32; and, as uint64, where the numbers of each end. A list is
    left in the text where a number of it is beyond float32, or so close to the middle of two that only a
    reader of more care tells which is nearer. Long texts are read without the GIL. Raises MemoryError.
    """
    cdef number_lists_t found
    cdef const char* data = PyBytes_AS_STRING(text)
    cdef size_t size = <size_t>PyBytes_GET_SIZE(text)
    cdef NumberListReader* reader = new NumberListReader(data, size)
    cdef bint has_memory
    try:
        if size < MIN_BYTES_WITHOUT_GIL:
            has_memory = reader.take(found)
        else:
            with nogil:
                has_memory = reader.take(found)
    finally:
        del reader
    if not has_memory:
        raise MemoryError(f"no memory for the numbers in a text of {size:,} bytes")
    if found.count == 0:
        return None
    rest = PyBytes_FromStringAndSize(found.rest.data(), <Py_ssize_t>found.rest.size())
    return rest, writable(found.floats), writable(found.ends)
