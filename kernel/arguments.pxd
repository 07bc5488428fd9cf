# Layout of arguments.

cdef size_t as_bound(str name, object bound, size_t most) except 0
cdef size_t as_limit(object limit, str unit) except? 0
cdef size_t as_bytes(object nbytes) except? 0
cdef double as_double(str must, object number) except? -1.0
cdef long long as_handle(object handle) except? -2
cdef int check_callback(object callback) except -1

cdef extern from "Python.h":
    const size_t NO_BOUND "PY_SSIZE_T_MAX"
