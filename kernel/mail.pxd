# Layout of a mail: the node that mailboxes link, and the Python object that embeds one.

from libcpp cimport bool as cbool


cdef extern from "pillarbox_mail.h" namespace "pillarbox" nogil:
    const int LEAST_PRIORITY "pillarbox::MIN_PRIORITY"
    const int GREATEST_PRIORITY "pillarbox::MAX_PRIORITY"
    const unsigned char URGENT "pillarbox::URGENT"
    const unsigned char DEFERRABLE "pillarbox::DEFERRABLE"

    cdef cppclass mail_t:
        mail_t* next
        void (*fn)(void* arg) noexcept
        void* arg
        int priority
        unsigned char flags
        cbool claim() noexcept
        void release() noexcept

    cdef cppclass MailList:
        size_t count() noexcept
        void append(mail_t* mail) noexcept
        void append_all(MailList& other) noexcept
        mail_t* pop(int priority, unsigned char skip) noexcept
        mail_t* pop_first() noexcept


cdef class Mail:
    cdef mail_t node
    cdef readonly object fn
    cdef readonly tuple args
    cdef object _description


cdef int as_priority(object priority) except? -2
