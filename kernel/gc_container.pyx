"""The base of objects with a C++ core: garbage collection, and the process that they belong to.

The base of the mailbox, the queues and the hand-over; any thread. A core knows no Python, so the collector
does not see what it holds: `GCContainer` shows it. A fork copies a core, but not the threads that use it, and
a lock that one of them held stays locked for ever: what was made before a fork refuses to work in the child.
"""

import os

from .errors import ForkedError


cdef extern from "Python.h":
    ctypedef int (*traverseproc)(PyObject* self, visitproc visit, void* arg) noexcept
    ctypedef int (*inquiry)(PyObject* self) noexcept

    ctypedef struct PyTypeObject:
        traverseproc tp_traverse
        inquiry tp_clear


cdef extern from *:
    """
    #ifdef _WIN32
    static int pillarbox_at_fork(void (*)()) noexcept { return 0; }
    #else
    #include <pthread.h>
    static int pillarbox_at_fork(void (*child)()) noexcept { return pthread_atfork(nullptr, nullptr, child); }
    #endif
    """
    int pillarbox_at_fork(void (*child)() noexcept nogil) noexcept


cdef class GCContainer:
    """Holds references where the garbage collector does not look by itself, and belongs to one process.

    A class that derives from it overrides `visit_owned` and `release_owned`; in `__dealloc__` it calls
    `abandon` if it `is_foreign`, and releases what it holds if not.
    """

    def __cinit__(self):
        self.generation = process_generation

    cdef int visit_owned(self, visitor_t* visitor) noexcept:
        """Gives every reference held to `visit_reference`, until an answer is not 0, which it returns.

        Called while the collector runs: it must neither make nor release anything, nor count a reference. It
        may take a lock under which nobody does that either.
        """
        return 0

    cdef void release_owned(self) noexcept:
        """Releases every reference held: the object is garbage. Afterwards it must still be destructible."""

    cdef int forked(self) except -1:
        raise ForkedError(type(self).__name__, os.getpid())


cdef int visit_reference(void* reference, void* visitor) noexcept:
    """Shows a reference, or null, to the collector."""
    if reference == NULL:
        return 0
    return (<visitor_t*>visitor).visit(<PyObject*>reference, (<visitor_t*>visitor).arg)


# Cython gives a type to the collector if it has an object among its members: `_reserved` is there for that,
# and stays None. The functions that Cython made are then exchanged for those that look into the core.
cdef traverseproc generated_traverse = (<PyTypeObject*>GCContainer).tp_traverse


cdef int traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef visitor_t visitor
    cdef int answer = generated_traverse(self, visit, arg)
    # What the child of a fork does not look into seems to be used from elsewhere: it is never garbage.
    if answer != 0 or (<GCContainer>self).hidden.load() != 0 or is_foreign(<GCContainer>self):
        return answer
    visitor.visit = visit
    visitor.arg = arg
    return (<GCContainer>self).visit_owned(&visitor)


cdef int clear(PyObject* self) noexcept:
    if not is_foreign(<GCContainer>self):
        (<GCContainer>self).release_owned()
    return 0


cdef void begin_generation() noexcept nogil:
    """In the child of a fork, which has one thread."""
    global process_generation
    process_generation += 1


(<PyTypeObject*>GCContainer).tp_traverse = traverse
(<PyTypeObject*>GCContainer).tp_clear = clear
if pillarbox_at_fork(begin_generation) != 0:
    raise MemoryError("no memory to be told of forks")
