# Layout of the two orders of emission: that of ResultQueue.

from pillarbox.kernel.resultqueue cimport ResultQueue


cdef class OrderedQueue(ResultQueue):
    pass


cdef class UnorderedQueue(ResultQueue):
    pass
