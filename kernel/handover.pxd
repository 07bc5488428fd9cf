# Layout of Handover: a list of items under one lock, and what either side waits for.

from pillarbox.kernel.monitor cimport Lock, Sleepers


cdef struct item_t:
    item_t* next
    # An owned reference.
    void* value
    size_t nbytes


cdef struct counts_t:
    size_t accepted
    size_t taken
    size_t refused
    size_t producer_waits
    size_t consumer_waits


cdef enum end_t:
    RUNNING
    ENDING
    CLOSED


cdef class Handover:
    cdef object __weakref__
    cdef Lock lock
    # Bounds.
    cdef size_t max_items
    cdef size_t max_bytes
    # What waits, oldest first.
    cdef item_t* first
    cdef item_t* last
    cdef size_t items
    cdef size_t nbytes
    # How it ends: the producer has ended it (with a failure or without), or the consumer has gone away.
    cdef end_t end
    cdef void* failure
    # Who waits. `woken` is a wake-up that has met no waiting consumer yet.
    cdef Sleepers producers
    cdef Sleepers consumers
    cdef void* armed_producer
    cdef size_t armed_nbytes
    cdef void* armed_consumer
    cdef bint woken
    cdef counts_t counts

    cdef bint has_room(self, size_t nbytes) noexcept nogil
    cdef bint offer(self, object item, object nbytes, double deadline) except -1
    cdef void append(self, item_t* node, void** armed, bint* wake) noexcept nogil
    cdef item_t* unlink(self, bint everything, void** armed, bint* wake) noexcept nogil
    cdef bint finish_with(self, void* failure) except -1
    cdef item_t* fetch(self, bint everything, void** armed) except? NULL
