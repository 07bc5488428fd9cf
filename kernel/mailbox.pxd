# Layout of TaskMailbox: the shared inbox, and what the mailbox thread has fetched from it.

from libcpp.atomic cimport atomic

from pillarbox.kernel.confined cimport Confined
from pillarbox.kernel.inbox cimport MutexInbox
from pillarbox.kernel.mail cimport Mail, MailList, mail_t


cdef class TaskMailbox(Confined):
    cdef object __weakref__
    # Shared: any thread.
    cdef MutexInbox inbox
    # Private to the mailbox thread; others read the counts only.
    cdef MailList urgent
    cdef MailList batch
    cdef MailList backlog
    cdef size_t urgent_burst
    cdef size_t urgent_in_a_row
    cdef atomic[size_t] taken
    cdef atomic[size_t] urgent_taken
    # Mails that left the mailbox, whichever way.
    cdef atomic[size_t] gone

    cdef bint offer(self, Mail mail) except -1
    cdef int push_chain(self, mail_t* first, mail_t* last, size_t count) except -1
    cdef void fetch(self) noexcept
    cdef mail_t* next_node(self, int priority, unsigned char skip, bint of_batch) noexcept
    cdef Mail hand_out(self, mail_t* node)
    cdef Mail unlinked(self, mail_t* node)
    cdef Mail take_one(self, int priority, unsigned char skip, bint of_batch)
