"""The two orders in which results leave: as they went in, or as they finish.

Each is a set of hooks below `ResultQueue`, which has the contract, the slots and the lock. A hook is called
under that lock; none allocates or touches a Python object.
"""

from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree

from pillarbox.kernel.resultqueue cimport FINISHED, NONE, ResultQueue


cdef class OrderedQueue(ResultQueue):
    """OrderedQueue(capacity): an entry is emitted when all that were admitted before it have been.

    The contract is that of ResultQueue. Slots are linked in the order of admission.
    """

    def __cinit__(self, capacity):
        self.open()

    cdef void on_admitted(self, int index) noexcept nogil:
        if self.head == NONE:
            self.head = index
        else:
            self.slots[self.tail].next = index
        self.tail = index

    cdef int ready(self) noexcept nogil:
        if self.head == NONE or self.slots[self.head].state != FINISHED:
            return NONE
        return self.head

    cdef void on_emitted(self, int index) noexcept nogil:
        self.head = self.slots[index].next

    cdef void on_cleared(self) noexcept nogil:
        self.head = self.tail = NONE


cdef class UnorderedQueue(ResultQueue):
    """UnorderedQueue(capacity): entries are emitted in the order of their completions, between watermarks.

    The contract is that of ResultQueue. A segment holds the entries between two watermarks. Only the first
    segment emits; when all of it has gone, its watermark goes, and the next segment is the first.
    """

    def __cinit__(self, capacity):
        # Every segment but the last has a watermark, and every watermark has a slot.
        self.segments = <segment_t*>PyMem_RawCalloc(self._capacity + 1, sizeof(segment_t))
        if self.segments == NULL:
            raise MemoryError(f"no memory for {self._capacity + 1} segments")
        self.open()

    def __dealloc__(self):
        PyMem_RawFree(self.segments)

    cdef int following(self, int segment) noexcept nogil:
        return 0 if segment == self._capacity else segment + 1

    cdef void open_segment(self, int segment) noexcept nogil:
        self.segments[segment].first = self.segments[segment].last = NONE
        self.segments[segment].running = 0
        self.segments[segment].watermark = NONE

    cdef void on_admitted(self, int index) noexcept nogil:
        self.slots[index].segment = self.last_segment
        if self.slots[index].is_watermark:
            self.segments[self.last_segment].watermark = index
            self.last_segment = self.following(self.last_segment)
            self.open_segment(self.last_segment)
        else:
            self.segments[self.last_segment].running += 1

    cdef void on_finished(self, int index) noexcept nogil:
        cdef segment_t* segment = &self.segments[self.slots[index].segment]
        segment.running -= 1
        if segment.first == NONE:
            segment.first = index
        else:
            self.slots[segment.last].next = index
        segment.last = index

    cdef int ready(self) noexcept nogil:
        cdef segment_t* segment = &self.segments[self.first_segment]
        if segment.first != NONE:
            return segment.first
        return segment.watermark if segment.running == 0 else NONE

    cdef void on_emitted(self, int index) noexcept nogil:
        if self.slots[index].is_watermark:
            self.first_segment = self.following(self.first_segment)
        else:
            self.segments[self.first_segment].first = self.slots[index].next

    cdef void on_cleared(self) noexcept nogil:
        self.first_segment = self.last_segment = 0
        self.open_segment(0)
