# Layout of GCContainer, the base of what holds references in C++, and the check that its methods begin with.
#
# The rule for whoever uses a core directly. References may come in without the GIL at any time. They may go
# out without the GIL, a wake-up that a put finds armed too, only after `hide`: the collector looks twice, and
# would miss one that is on its way, and take its object for garbage.

from cpython.ref cimport PyObject
from libcpp.atomic cimport atomic


cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject* thing, void* arg) noexcept


cdef extern from *:
    """
    #include <new>

    // What the child of a fork does with a core that another thread may have been in the middle of: it lets
    // everything lie, and what is destroyed afterwards is a new one.
    template <class Core>
    static void abandon(Core& core) noexcept { new (static_cast<void*>(&core)) Core(); }
    """
    void abandon[Core](Core& core) noexcept nogil


cdef struct visitor_t:
    visitproc visit
    void* arg


# How many forks lie between the first process that loaded this module and the present one.
cdef unsigned int process_generation


cdef class GCContainer:
    cdef object _reserved
    cdef unsigned int generation
    cdef atomic[int] hidden
    cdef int visit_owned(self, visitor_t* visitor) noexcept
    cdef void release_owned(self) noexcept
    cdef int forked(self) except -1


cdef int visit_reference(void* reference, void* visitor) noexcept


cdef inline bint is_foreign(GCContainer self) noexcept nogil:
    """Whether the object was made before a fork, of which the present process is the child."""
    return self.generation != process_generation


cdef inline int check_process(GCContainer self) except -1:
    """Raises ForkedError in the child of a fork. Any thread."""
    if self.generation != process_generation:
        self.forked()
    return 0


cdef inline void hide(GCContainer self) noexcept:
    """From now on, for good, the collector takes all that the object holds for used. Any thread that has the
    GIL, or is attached where there is none: no collection looks at objects meanwhile.
    """
    self.hidden.store(1)
