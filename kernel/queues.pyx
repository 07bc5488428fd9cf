"""The two orders in which results leave: as they went in, or as they finish.

The contract, and which thread may do what, is that of `ResultQueue`.
"""

from pillarbox.kernel.resultqueue cimport ResultQueue


cdef class OrderedQueue(ResultQueue):
    """OrderedQueue(capacity, *, owner_completes=False): an entry is emitted when all admitted before it
    have been.

        >>> from pillarbox.kernel import OrderedQueue
        >>> queue = OrderedQueue(8)
        >>> first, second = queue.put("a"), queue.put("b")
        >>> queue.complete(second, "B")
        True
        >>> print(queue.emit())
        None
        >>> queue.complete(first, "A")
        True
        >>> queue.emit_many()
        [('a', 'A'), ('b', 'B')]

    Contract, threads and errors are those of ResultQueue. capacity: entries, at most.
    """

    def __cinit__(self, capacity, *, owner_completes=False):
        self.open(capacity, True, owner_completes)


cdef class UnorderedQueue(ResultQueue):
    """UnorderedQueue(capacity, *, owner_completes=False): entries are emitted in the order of their
    completions, between watermarks.

        >>> from pillarbox.kernel import WATERMARK, UnorderedQueue
        >>> queue = UnorderedQueue(8)
        >>> first, second = queue.put("a"), queue.put("b")
        >>> queue.put_watermark(10.0)
        >>> queue.complete(second, "B"), queue.complete(first, "A")
        (True, True)
        >>> queue.emit_many() == [("b", "B"), ("a", "A"), (WATERMARK, 10.0)]
        True

    Contract, threads and errors are those of ResultQueue. capacity: entries, at most. Restored entries that
    were finished count as finished when they are admitted.
    """

    def __cinit__(self, capacity, *, owner_completes=False):
        self.open(capacity, False, owner_completes)
