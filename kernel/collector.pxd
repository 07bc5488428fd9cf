# Layout of a collector and of what makes it.

from cpython.object cimport PyObject
from libcpp cimport bool as cbool

from pillarbox.kernel.mail cimport Mail, mail_t
from pillarbox.kernel.mailbox cimport TaskMailbox
from pillarbox.kernel.mailbox_core cimport Core

ctypedef PyObject* (*make_result_t)(void* payload, cbool wanted) noexcept


cdef extern from "pillarbox_atomic.h" namespace "pillarbox" nogil:
    cdef cppclass LateCount "pillarbox::Counter":
        size_t load() noexcept
        size_t fetch_add(size_t by) noexcept


cdef extern from "pillarbox_collector.h" namespace "pillarbox" nogil:
    cdef enum class Collected:
        FIRST
        REVOKED
        TAKEN

    cdef cppclass collected_t(mail_t):
        void* owner
        Core* mailbox
        LateCount* late
        void* payload
        make_result_t make
        Collected take() noexcept
        cbool revoke() noexcept
        cbool is_open() noexcept
        void count_late() noexcept


cdef class CollectorFactory:
    cdef TaskMailbox mailbox
    cdef object ended
    cdef int priority
    cdef LateCount late_count


cdef class Collector:
    cdef collected_t node
    cdef CollectorFactory factory
    cdef object call
    cdef bint bring(self, object result, bint failed) except -1
    cdef object made(self)
    cdef void hand_in(self) noexcept
    cdef void let_go(self) noexcept


cdef class Completion(Mail):
    cdef CollectorFactory factory
    cdef Collector collector
    cdef object call
    cdef object result
    cdef bint failed
