"""Checks of bounds, sizes, numbers and callbacks, as the kernel accepts them. TypeError and ValueError name
the argument, its value and what is allowed. Any thread.
"""

from cpython.long cimport PyLong_AsLongLongAndOverflow


cdef size_t as_bound(str name, object bound, size_t most) except 0:
    """A number of something, 1 to `most`."""
    if not isinstance(bound, int):
        raise TypeError(f"{name} must be an int, not {bound!r}")
    if not 1 <= bound <= most:
        raise ValueError(f"{name} must be 1 to {most}, not {bound}")
    return bound


cdef size_t as_limit(object limit, str unit) except? 0:
    """A number of something to take at most, from 0."""
    if limit < 0:
        raise ValueError(f"limit must be None or at least 0 {unit}, not {limit!r}")
    return min(limit, NO_BOUND)


cdef size_t as_bytes(object nbytes) except? 0:
    """The size of an item, in bytes, from 0."""
    if not isinstance(nbytes, int):
        raise TypeError(f"nbytes must be an int, not {nbytes!r}")
    if not 0 <= nbytes <= NO_BOUND:
        raise ValueError(f"nbytes must be at least 0, not {nbytes}")
    return nbytes


cdef double as_double(str must, object number) except? -1.0:
    """A number as a C double. `must` begins the message of TypeError and ValueError: what has to be what."""
    cdef double value
    try:
        value = number
    except TypeError:
        raise TypeError(f"{must}, not {number!r}") from None
    except OverflowError:
        raise ValueError(f"{must} that fits a float") from None
    return value


cdef long long as_handle(object handle) except? -2:
    """A handle of a queue; -1, which names no entry, for an int that is too large to be one."""
    cdef int overflows = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(handle, &overflows)
    return -1 if overflows else number


cdef int check_callback(object callback) except -1:
    if not callable(callback):
        raise TypeError(f"callback must be callable, not {callback!r}")
    return 0
