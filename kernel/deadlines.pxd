# Layout of Deadlines: the timers of `include/pillarbox_deadlines.h`, whose payloads are owned references
# here.
#
# Another module may use `core` without the GIL, in the owner's thread: what it gives must be owned
# references, and what it gets back is. No thread may be in `peek` or in the collection of garbage
# meanwhile.

from libc.stdint cimport int64_t
from libcpp cimport bool as cbool

from pillarbox.kernel.confined cimport Confined

ctypedef void (*release_t)(void* payload) noexcept
ctypedef int (*each_t)(void* payload, void* context) noexcept

cdef extern from "pillarbox_deadlines.h" namespace "pillarbox" nogil:
    cdef cppclass DeadlinesCore "pillarbox::Deadlines":
        double tell(double reading) noexcept
        int64_t arm(double seconds, void* payload) except +
        cbool cancel(int64_t handle, void** payload) noexcept
        cbool pop(double until, void** payload) noexcept
        cbool peek(void** payload, double* due) noexcept
        size_t count_due(double until, size_t most) noexcept
        int visit(each_t each, void* context) noexcept
        void let_go(release_t release) noexcept
        size_t size() noexcept
        double next_due() noexcept
        size_t bytes() noexcept


cdef class Deadlines(Confined):
    cdef object __weakref__
    cdef DeadlinesCore core
    cdef object clock
    cdef double time(self) except? -1.0
    cdef list take_out(self, double until, size_t most)
