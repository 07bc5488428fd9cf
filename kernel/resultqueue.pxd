# Layout of ResultQueue: the queue of `include/pillarbox_queue.h`, whose payloads are owned references here.
#
# Another module may use `core` without the GIL, from the threads that the header allows: what it gives must
# be owned references, and what it gets back is.

from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from pillarbox.kernel.confined cimport Confined
from pillarbox.kernel.queue_pairs cimport pair_t

ctypedef void (*release_t)(void* payload) noexcept
ctypedef int (*each_t)(void* payload, void* context) noexcept


cdef extern from "pillarbox_queue.h" namespace "pillarbox" nogil:
    # A handle is the number of an attempt above the number of a slot.
    const int SLOT_BITS
    const int GREATEST_CAPACITY "pillarbox::MAX_CAPACITY"

    cdef enum class QueueAnswer:
        DONE
        FULL
        CLOSED
        RESTORING
        NOT_EMPTY

    cdef enum class EntryState(unsigned char):
        FREE
        RUNNING
        FINISHED
        WATERMARK

    cdef enum class Completers:
        ANY
        OWNER

    cdef struct entry_t:
        void* element
        void* result
        EntryState state
        long long admission

    cdef struct queue_counts_t:
        int size
        int running
        size_t restoring
        long long admitted
        long long watermarks
        long long completed
        long long emitted
        long long renewed
        long long restored
        long long late

    cdef cppclass QueueCore "pillarbox::ResultQueue":
        void open(int capacity, cbool ordered, Completers completers) except +
        QueueAnswer put(void* element, long long* handle) noexcept
        QueueAnswer put_watermark(void* element, void* result) noexcept
        cbool renew(long long* handle) noexcept
        cbool complete(long long handle, void* result) noexcept
        cbool has_completed() noexcept
        int emit(pair_t* out, int most) noexcept
        void snapshot(vector[entry_t]& out) except +
        void clear(vector[entry_t]& out) except +
        void close(vector[entry_t]& out) except +
        int visit(each_t each, void* context) noexcept
        void let_go(release_t release) noexcept
        QueueAnswer restore(vector[entry_t]& entries) noexcept
        cbool admit_restored(void** element, long long* handle) noexcept
        int capacity() noexcept
        queue_counts_t counts() noexcept


cdef class ResultQueue(Confined):
    cdef object __weakref__
    cdef QueueCore core
    cdef bint owner_completes
    cdef int open(self, object capacity, bint ordered, bint owner_completes) except -1
    cdef int refuse(self, QueueAnswer answer) except -1
