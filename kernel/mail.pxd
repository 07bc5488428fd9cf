# Layout of a mail: the node that mailboxes link, and the Python object that embeds one.

from cpython.ref cimport Py_DECREF
from libcpp cimport bool as cbool


cdef extern from "pillarbox_mail.h" namespace "pillarbox" nogil:
    const int LEAST_PRIORITY "pillarbox::MIN_PRIORITY"
    const int GREATEST_PRIORITY "pillarbox::MAX_PRIORITY"
    const unsigned char URGENT "pillarbox::URGENT"
    const unsigned char DEFERRABLE "pillarbox::DEFERRABLE"
    const unsigned char PYTHON "pillarbox::PYTHON"

    cdef cppclass mail_t:
        mail_t* next
        void (*fn)(mail_t* mail, cbool run) noexcept
        void* object
        int priority
        unsigned char flags
        cbool claim() noexcept
        cbool claim_alone() noexcept
        void release() noexcept

    cdef cppclass chain_t:
        void add(mail_t* mail) noexcept

    cdef cppclass MailList:
        size_t count() noexcept
        void append(mail_t* mail) noexcept
        mail_t* pop_first() noexcept


cdef class Mail:
    cdef mail_t node
    cdef readonly object fn
    cdef readonly tuple args
    cdef object _description


cdef class NativeCall:
    cdef mail_t* node


cdef extern from *:
    """
    // Python code claims a mail with the GIL held, where there is one; native code claims no Python mail.
    static inline bool pillarbox_claim(pillarbox::mail_t& mail) noexcept {
    #ifdef Py_GIL_DISABLED
        return mail.claim();
    #else
        return mail.claim_alone();
    #endif
    }
    """
    cbool claim_by_python "pillarbox_claim"(mail_t& mail) noexcept


cdef Mail handed_out_native(mail_t* node)
cdef void let_go(mail_t* node) noexcept
cdef list all_handed_out(MailList& nodes)
cdef void unclaim(tuple mails, Py_ssize_t count) noexcept
cdef int as_priority(object priority) except? -2

cdef inline Mail handed_out(mail_t* node):
    """The Mail of an unlinked node, whose claim ends; its reference becomes the caller's."""
    if not node.flags & PYTHON:
        return handed_out_native(node)
    mail = <Mail>node.object
    node.release()
    Py_DECREF(mail)
    return mail


cdef inline int accepted_priority(object priority) except? -2:
    # The usual one, by identity: small integers are made once.
    return LEAST_PRIORITY if priority is -1 else as_priority(priority)
