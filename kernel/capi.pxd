# The C interface of `include/pillarbox.h`, for Cython: `pillarbox_import()`, then `pillarbox_api.put(...)`.
#
# What each function does, and which thread may call it, with the GIL or without, stands in the header. To
# compile, a module needs the folder `pillarbox.kernel.get_include()`, and neither C++ nor the other layouts.

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool as cbool


cdef extern from "pillarbox.h" nogil:
    const int PILLARBOX_LOCK_FREE
    const int PILLARBOX_MUTEX
    const int PILLARBOX_URGENT
    const int PILLARBOX_DEFERRABLE
    const int PILLARBOX_MIN_PRIORITY
    const int PILLARBOX_OPEN
    const int PILLARBOX_QUIESCED
    const int PILLARBOX_CLOSED
    const int PILLARBOX_WAITS
    const int PILLARBOX_NO_MEMORY
    const int PILLARBOX_INVALID
    const int PILLARBOX_MAX_CAPACITY

    ctypedef struct pillarbox_mail:
        pillarbox_mail* next
        void (*fn)(pillarbox_mail* mail, cbool run) noexcept nogil
        uint64_t number
        int priority
        unsigned char flags
        unsigned char queued

    ctypedef struct pillarbox_mailbox:
        pass

    ctypedef struct pillarbox_consumer:
        PyObject* mailbox
        unsigned long owner

    ctypedef struct pillarbox_queue:
        pass

    ctypedef struct pillarbox_pair:
        void* element
        void* result

    ctypedef struct pillarbox_collector:
        pass

    ctypedef struct pillarbox_functions:
        int version_major
        int version_minor
        size_t size
        size_t mail_size
        pillarbox_mailbox* (*create)(int backend, size_t urgent_burst) noexcept nogil
        void (*destroy)(pillarbox_mailbox* mailbox) noexcept nogil
        pillarbox_mailbox* (*of)(PyObject* mailbox) except NULL
        pillarbox_mailbox* (*begin_consuming)(PyObject* mailbox, pillarbox_consumer* consumer) except NULL
        void (*end_consuming)(pillarbox_consumer* consumer) noexcept
        int (*put)(pillarbox_mailbox* mailbox, pillarbox_mail* mail) noexcept nogil
        int (*put_all)(pillarbox_mailbox* mailbox, pillarbox_mail** mails, size_t count) noexcept nogil
        int (*post)(
            pillarbox_mailbox* mailbox,
            void (*fn)(void* arg, cbool run) noexcept nogil, void* arg, int priority, int flags
        ) noexcept nogil
        pillarbox_mail* (*take)(
            pillarbox_mailbox* mailbox, int priority, int skip, double timeout, int* state
        ) noexcept nogil
        cbool (*create_batch)(pillarbox_mailbox* mailbox) noexcept nogil
        pillarbox_mail* (*take_from_batch)(pillarbox_mailbox* mailbox) noexcept nogil
        size_t (*run_batch)(pillarbox_mailbox* mailbox) noexcept nogil
        int (*run)(pillarbox_mail* mail) noexcept nogil
        void (*drop)(pillarbox_mail* mail) noexcept nogil
        void (*release)(pillarbox_mail* mail) noexcept nogil
        void (*quiesce)(pillarbox_mailbox* mailbox) noexcept nogil
        pillarbox_mail* (*close)(pillarbox_mailbox* mailbox) noexcept nogil
        int (*state)(pillarbox_mailbox* mailbox) noexcept nogil
        size_t (*waiting)(pillarbox_mailbox* mailbox) noexcept nogil
        pillarbox_queue* (*create_queue)(int capacity, cbool ordered) noexcept nogil
        void (*destroy_queue)(
            pillarbox_queue* queue, void (*release)(void* payload) noexcept nogil
        ) noexcept nogil
        pillarbox_queue* (*queue_of)(PyObject* queue) except NULL
        cbool (*put_entry)(pillarbox_queue* queue, void* element, int64_t* handle) noexcept nogil
        cbool (*put_watermark)(pillarbox_queue* queue, void* element, void* result) noexcept nogil
        cbool (*renew)(pillarbox_queue* queue, int64_t* handle) noexcept nogil
        cbool (*complete)(pillarbox_queue* queue, int64_t handle, void* result) noexcept nogil
        int (*emit)(pillarbox_queue* queue, pillarbox_pair* out, int most) noexcept nogil
        pillarbox_queue* (*create_confined_queue)(int capacity, cbool ordered) noexcept nogil
        pillarbox_collector* (*collector_of)(PyObject* collector) except NULL
        cbool (*collect)(
            pillarbox_collector* collector, void* payload,
            PyObject* (*make)(void* payload, cbool wanted) noexcept
        ) noexcept nogil

    const pillarbox_functions* pillarbox_api
    void pillarbox_mail_init(
        pillarbox_mail* mail,
        void (*fn)(pillarbox_mail* mail, cbool run) noexcept nogil, int priority, int flags
    ) noexcept


cdef extern from "pillarbox.h":
    int pillarbox_import() except -1
