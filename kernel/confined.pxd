# Layout of Confined, and the check that every confined method begins with.

from libcpp.atomic cimport atomic, memory_order_relaxed

from pillarbox.kernel.gc_container cimport GCContainer, check_process


cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident() noexcept


cdef class Confined(GCContainer):
    cdef atomic[unsigned long long] owner  # its number; 0 while the thread that was named has not come
    cdef atomic[unsigned long] ident  # of the owner, or of the thread that was named
    cdef unsigned long named_native_id  # of the thread that was named; 0 is unknown
    cdef bint lent
    cdef unsigned long lender_ident
    cdef int name_owner(self, object thread) except -1
    cdef bint change_owner(self, unsigned long long former) noexcept
    cdef int wrong_thread(self) except -1
    cdef bint may_change_owner(self) except -1


# A number that no other thread of this process has, ever: an ident is given again when its thread has ended.
cdef unsigned long long thread_number() noexcept nogil
cdef bint take_up(Confined self) noexcept with gil


cdef inline bint is_owner(Confined self) noexcept nogil:
    # Relaxed is enough: a thread always sees its own number if it is the owner, and only then does it matter.
    cdef unsigned long long owner = self.owner.load(memory_order_relaxed)
    return owner == thread_number() or (owner == 0 and take_up(self))


cdef inline int check_owner(Confined self) except -1:
    check_process(self)
    if not is_owner(self):
        self.wrong_thread()
    return 0
