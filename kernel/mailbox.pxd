# Layout of TaskMailbox: the core, which any thread may use without the GIL, as its header says.

from pillarbox.kernel.confined cimport Confined
from pillarbox.kernel.mail cimport Mail, MailList, chain_t, mail_t
from pillarbox.kernel.mailbox_core cimport Core, state_t


cdef extern from "pillarbox_atomic.h" namespace "pillarbox" nogil:
    # Written by one thread, read by any.
    cdef cppclass RunCount "pillarbox::Counter":
        size_t load() noexcept

    void bump(RunCount& count, size_t by) noexcept


cdef class TaskMailbox(Confined):
    cdef object __weakref__
    cdef Core core
    cdef bint leaving
    cdef RunCount batch_runs

    cdef bint offer(self, Mail mail) except -1
    cdef state_t put_nodes(self, const chain_t& mails) noexcept nogil
    cdef int check_not_closed(self) except -1
    cdef bint has_nothing_private(self) noexcept
    cdef Mail take_one(self, int priority, unsigned char skip)
