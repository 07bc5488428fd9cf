"""The two orders in which results leave: as they went in, or as they finish.

The contract, and which thread may do what, is that of `ResultQueue`.
"""

from pillarbox.kernel.resultqueue cimport ResultQueue


cdef class OrderedQueue(ResultQueue):
    """OrderedQueue(capacity, *, owner_completes=False): an entry is emitted when all admitted before it
    have been.

    The contract is that of ResultQueue.
    """

    def __cinit__(self, capacity, *, owner_completes=False):
        self.open(capacity, True, owner_completes)


cdef class UnorderedQueue(ResultQueue):
    """UnorderedQueue(capacity, *, owner_completes=False): entries are emitted in the order of their
    completions, between watermarks.

    The contract is that of ResultQueue. Restored entries that were finished count as finished when they are
    admitted.
    """

    def __cinit__(self, capacity, *, owner_completes=False):
        self.open(capacity, False, owner_completes)
