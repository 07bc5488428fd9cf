# The mailbox of `include/pillarbox_mailbox.h`, with the inbox of this build, for Cython.

from libcpp cimport bool as cbool

from pillarbox.kernel.mail cimport MailList, chain_t, mail_t

ctypedef int (*each_t)(void* owned, void* context) noexcept


cdef extern from "pillarbox_state.h" namespace "pillarbox" nogil:
    cdef enum state_t "pillarbox::state_t":
        OPEN "pillarbox::OPEN"
        QUIESCED "pillarbox::QUIESCED"
        CLOSED "pillarbox::CLOSED"


cdef extern from "pillarbox_inbox.h" namespace "pillarbox" nogil:
    const int INBOX_KINDS "pillarbox::Inbox::KINDS"

    cdef cppclass Inbox:
        cbool use(int kind) noexcept
        int kind() noexcept
        state_t state() noexcept
        size_t accepted() noexcept
        size_t rejected() noexcept
        cbool parked() noexcept


cdef extern from "pillarbox_mailbox.h" namespace "pillarbox" nogil:
    cdef cppclass Core "pillarbox::Mailbox<pillarbox::Inbox>":
        void set_urgent_burst(size_t mails) noexcept
        Inbox& inbox() noexcept
        state_t put(const chain_t& mails, void** armed) noexcept
        void quiesce(void** armed) noexcept
        mail_t* take(int priority, unsigned char skip, state_t* seen) noexcept
        mail_t* take_from_batch() noexcept
        void park(double seconds) except +
        state_t fetch() noexcept
        cbool create_batch() noexcept
        void drain(MailList& to) noexcept
        void close(MailList& to, void** armed) noexcept
        cbool arm(void* callback, void** spare) noexcept
        cbool has_mail() noexcept
        cbool any_fetched() noexcept
        size_t waiting() noexcept
        size_t in_batch() noexcept
        size_t taken() noexcept
        size_t urgent_taken() noexcept
        int visit(each_t each, void* context) noexcept
