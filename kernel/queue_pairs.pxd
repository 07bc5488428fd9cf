# What a queue moves out of itself, and makes a tuple of afterwards.

from cpython.ref cimport Py_INCREF, PyObject


cdef extern from "Python.h":
    # Declared for owned references, which PyTuple_SET_ITEM takes over.
    object PyTuple_New(Py_ssize_t size)
    void PyTuple_SET_ITEM(object pair, Py_ssize_t position, PyObject* owned)


cdef extern from "pillarbox_queue.h" namespace "pillarbox" nogil:
    # In a queue of Python's, both are owned references.
    cdef struct pair_t:
        void* element
        void* result


cdef inline tuple paired(pair_t* pair):
    """The tuple of both; it takes their references over. A null result, as native code may give, is None."""
    cdef object both = PyTuple_New(2)
    PyTuple_SET_ITEM(both, 0, <PyObject*>pair.element)
    if pair.result == NULL:
        Py_INCREF(None)
        pair.result = <void*>None
    PyTuple_SET_ITEM(both, 1, <PyObject*>pair.result)
    return <tuple>both
