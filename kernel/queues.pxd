# Layout of the two orders of emission.

from pillarbox.kernel.resultqueue cimport ResultQueue


cdef class OrderedQueue(ResultQueue):
    cdef int head
    cdef int tail


cdef struct segment_t:
    # Finished entries of this segment, in the order of their completions.
    int first
    int last
    # Entries of this segment that run.
    int running
    # The slot of the watermark that ends this segment; NONE in the last segment.
    int watermark


cdef class UnorderedQueue(ResultQueue):
    # A ring: a segment is opened by a watermark and leaves when its own watermark is emitted.
    cdef segment_t* segments
    cdef int first_segment
    cdef int last_segment

    cdef int following(self, int segment) noexcept nogil
    cdef void open_segment(self, int segment) noexcept nogil
