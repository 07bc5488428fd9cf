# Layout of Handover: the hand-over of `include/pillarbox_handover.h`. Here every value, failure and wake-up
# is an owned reference, and every item is memory of PyMem_RawMalloc.
#
# Another module may use `core` without the GIL, if it keeps to that. A take that finds a failure needs the
# GIL.

from libcpp cimport bool as cbool

from pillarbox.kernel.gc_container cimport GCContainer

ctypedef void (*share_t)(void* failure) noexcept
ctypedef int (*each_t)(void* owned, void* context) noexcept


cdef extern from "pillarbox_handover.h" namespace "pillarbox" nogil:
    cdef struct item_t:
        item_t* next
        void* value
        size_t nbytes

    cdef enum class PutAnswer:
        ACCEPTED
        NO_ROOM
        ENDED
        CLOSED

    cdef enum class TakeAnswer:
        ITEMS
        NOTHING
        FAILED
        FINISHED
        CLOSED

    cdef cppclass taken_t:
        item_t* items
        void* failure
        void* armed

    cdef cppclass left_t:
        item_t* items
        void* failure
        void* producer
        void* consumer

    cdef struct handover_counts_t:
        size_t items
        size_t nbytes
        size_t accepted
        size_t taken
        size_t refused
        size_t producer_waits
        size_t consumer_waits
        cbool ended

    cdef cppclass HandoverCore "pillarbox::Handover":
        void bound(size_t max_items, size_t max_bytes, share_t share) noexcept
        PutAnswer put(item_t* item, void** armed) noexcept
        void await_room(size_t nbytes, double seconds, cbool* waited) except +
        void refuse() noexcept
        cbool finish(void* failure, void** armed) noexcept
        cbool arm_producer(void** callback, size_t nbytes) noexcept
        TakeAnswer take(cbool everything, taken_t* taken) noexcept
        cbool await_item(double seconds, cbool* waited) except +
        void close(left_t* left) noexcept
        cbool arm_consumer(void** callback) noexcept
        void wake_up(void** armed) noexcept
        handover_counts_t counts() noexcept
        int visit(each_t each, void* context) noexcept


cdef class Handover(GCContainer):
    cdef object __weakref__
    cdef HandoverCore core

    cdef bint offer(self, object item, object nbytes, double deadline) except -1
    cdef bint finish_with(self, void* failure) except -1
    cdef item_t* fetch(self, bint everything, void** armed) except? NULL
