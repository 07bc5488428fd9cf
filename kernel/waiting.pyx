"""Waits and wake-ups of kernel calls: time-outs, the slice of a sleep, one-shot callbacks, owned references.

Used by the mailbox, the queues and the hand-over, from any thread. Nothing here takes a lock, and what may
run foreign code (`call_back`, `drop`) is for callers that hold none.
"""

from threading import main_thread

from cpython.exc cimport PyErr_CheckSignals, PyErr_ExceptionMatches, PyErr_SetInterrupt, PyErr_WriteUnraisable
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.math cimport INFINITY, isnan

from pillarbox.kernel.arguments cimport as_double
from pillarbox.kernel.gc_container cimport GCContainer, check_process
from pillarbox.kernel.monitor cimport steady_seconds


cdef extern from "Python.h":
    # Declared without an exception value: the caller looks at the null itself.
    PyObject* PyObject_CallNoArgs(PyObject* function)
    unsigned long PyThread_get_thread_ident() nogil
    void Py_DECREF_RAW "Py_DECREF"(PyObject* reference)


cdef double deadline_after(object timeout) except? -1.0:
    """The moment on the steady clock, in seconds, at which a wait of `timeout` seconds ends; None: never."""
    cdef double seconds
    if timeout is None:
        return INFINITY
    seconds = as_double("timeout must be None or a number of seconds", timeout)
    if isnan(seconds) or seconds < 0.0:
        raise ValueError(f"timeout must be None or at least 0 seconds, not {timeout!r}")
    return steady_seconds() + seconds


cdef double next_slice(double deadline) except? -2.0:
    """The seconds to sleep now: up to the deadline, on the main thread a slice at most; not positive
    when it is over.

    Handlers of signals run on the main thread alone: any other one would wake for nothing.
    """
    cdef double left = deadline - steady_seconds()
    if left <= SLICE_SECONDS:
        return left
    if PyThread_get_thread_ident() == <unsigned long>main_thread().ident:
        return SLICE_SECONDS
    return min(left, LONGEST_SLEEP_SECONDS)


cdef int after_sleep(GCContainer self) except -1:
    """Handles signals between two slices of a wait; a handler may fork."""
    PyErr_CheckSignals()
    return check_process(self)


cdef void call_back(void* callback) noexcept:
    """Calls a wake-up that the caller owns, and drops it.

    What it raises goes to `sys.unraisablehook`: the put that woke somebody has been done and must not raise.
    """
    cdef PyObject* answer = PyObject_CallNoArgs(<PyObject*>callback)
    if answer == NULL:
        report(<object>callback)
    else:
        Py_DECREF_RAW(answer)
    Py_DECREF_RAW(<PyObject*>callback)


cdef void report(object where) noexcept:
    """Gives the error that is set, which nobody is there to handle, to `sys.unraisablehook`."""
    cdef bint interrupted = PyErr_ExceptionMatches(KeyboardInterrupt)
    PyErr_WriteUnraisable(where)
    # A Ctrl-C that came just then is not meant for what was called: the main thread gets it.
    if interrupted:
        PyErr_SetInterrupt()


cdef void* keep(object reference) noexcept:
    """One more reference to the object, owned by whoever holds the pointer."""
    Py_INCREF(reference)
    return <void*>reference


cdef void drop(void* reference) noexcept:
    """Gives up an owned reference; null has none."""
    if reference != NULL:
        Py_DECREF_RAW(<PyObject*>reference)


cdef object take_over(void* reference):
    """Turns an owned reference into an object of the caller."""
    result = <object>reference
    Py_DECREF(result)
    return result
