# The shared side of a mailbox, of `include/pillarbox_inbox.h`, for Cython. A backend is one such class.

from libcpp cimport bool as cbool

from pillarbox.kernel.mail cimport MailList, mail_t


cdef extern from "pillarbox_inbox.h" namespace "pillarbox" nogil:
    cdef enum state_t "pillarbox::state_t":
        OPEN "pillarbox::OPEN"
        QUIESCED "pillarbox::QUIESCED"
        CLOSED "pillarbox::CLOSED"

    cdef cppclass MutexInbox:
        state_t push(mail_t* first, mail_t* last, size_t count, void** armed) noexcept
        void quiesce(void** armed) noexcept
        void close(void** armed) noexcept
        void fetch(MailList& to) noexcept
        void park(double seconds) except +
        cbool arm(void* callback, void** spare) noexcept
        state_t state() noexcept
        size_t arrived() noexcept
        size_t accepted() noexcept
        size_t rejected() noexcept
        cbool parked() noexcept
