# Layout of ResultQueue: preallocated slots, guarded by one lock, and the hooks of an order of emission.

from pillarbox.kernel.confined cimport Confined
from pillarbox.kernel.monitor cimport Lock
from pillarbox.kernel.pairs cimport pair_t


cdef enum:
    # No slot.
    NONE = -1
    # A handle is the number of an attempt above the number of a slot.
    SLOT_BITS = 24
    SLOT_MASK = (1 << 24) - 1
    # Entries that emit_many moves out under one locking.
    CHUNK = 64


cdef enum entry_state:
    FREE
    RUNNING
    FINISHED


cdef struct slot_t:
    # Both are owned references. The result is null until the entry is finished.
    void* element
    void* result
    # The handle of the present attempt; no other handle, earlier or later, is ever equal to it.
    long long handle
    # Admission number, counted over the life of the queue.
    long long admission
    # Next slot of the list that this slot is in: free, admitted (ordered) or finished (unordered).
    int next
    # Unordered: the segment between two watermarks that the entry belongs to.
    int segment
    entry_state state
    bint is_watermark


cdef struct counts_t:
    long long admitted
    long long watermarks
    long long completed
    long long emitted
    long long renewed
    long long late


cdef class ResultQueue(Confined):
    cdef object __weakref__
    cdef Lock lock
    cdef slot_t* slots
    cdef int _capacity
    cdef int free
    cdef int size
    cdef int running
    cdef bint closed
    # Numbers given to attempts and to admissions so far.
    cdef long long attempts
    cdef long long admissions
    cdef counts_t counts

    # The order of emission, of a subclass. Called under the lock; none allocates or touches Python objects.
    cdef void on_admitted(self, int index) noexcept nogil
    cdef void on_finished(self, int index) noexcept nogil
    cdef int ready(self) noexcept nogil
    cdef void on_emitted(self, int index) noexcept nogil
    cdef void on_cleared(self) noexcept nogil

    cdef long long admit(self, object element, bint is_watermark) except -1
    cdef slot_t* running_slot(self, long long handle) noexcept nogil
    cdef bint pop(self, pair_t* pair) noexcept nogil
    cdef void open(self) noexcept nogil
    cdef void free_all(self) noexcept nogil
    cdef list copied(self, bint take)
