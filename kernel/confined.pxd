# Layout of Confined, and the check that every confined method begins with.

from libcpp.atomic cimport atomic, memory_order_relaxed

from pillarbox.kernel.holder cimport Holder, check_process


cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident() noexcept


cdef class Confined(Holder):
    cdef atomic[unsigned long] owner
    cdef bint lent
    cdef int wrong_thread(self) except -1
    cdef bint may_change_owner(self) except -1


cdef inline bint is_owner(Confined self) noexcept nogil:
    # Relaxed is enough: a thread always sees its own ident if it is the owner, and only then does it matter.
    return self.owner.load(memory_order_relaxed) == PyThread_get_thread_ident()


cdef inline int check_owner(Confined self) except -1:
    check_process(self)
    if not is_owner(self):
        self.wrong_thread()
    return 0
