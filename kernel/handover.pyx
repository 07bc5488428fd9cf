"""A bounded hand-over of batches from one thread to another, for example from a reading thread to the task
thread.

Bounded by the number of items and by the bytes that the producer declares. An item is whatever the producer
makes of it, best a whole batch, so that the lock is taken once a batch. All methods are thread-safe; the
words producer and consumer say who is meant to call them. Every wait is with the GIL released and lets
Ctrl-C through.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.math cimport INFINITY

from pillarbox.kernel.arguments cimport NO_BOUND, as_bound, as_bytes, check_callback
from pillarbox.kernel.waiting cimport call_back, deadline_after, drop, keep, next_slice, take_over

from .counters import HandoverStatistics
from .errors import HandoverClosedError


cdef class Handover:
    """Handover(max_items, max_bytes=None)

    1. Items come out in the order in which they went in, each once.
    2. At most `max_items` items and `max_bytes` bytes wait; but into an empty hand-over every item goes,
       however large.
    3. `finish` and `fail` end the input: what waits is still handed out, after it every take raises
       HandoverClosedError, or the failure. The first of the two calls decides.
    4. `close` is the consumer's end: it returns what waits, and every put returns False at once.
    5. A `wake_up` is never lost: if no consumer waits, the next take that would wait returns None instead.
    """

    def __cinit__(self, max_items, max_bytes=None):
        self.max_items = as_bound("max_items", max_items, NO_BOUND)
        self.max_bytes = NO_BOUND if max_bytes is None else as_bound("max_bytes", max_bytes, NO_BOUND)

    def __dealloc__(self):
        cdef item_t* node = self.first
        cdef item_t* after
        while node != NULL:
            after = node.next
            drop(node.value)
            PyMem_RawFree(node)
            node = after
        drop(self.failure)
        drop(self.armed_producer)
        drop(self.armed_consumer)

    # ---- producer

    def put(self, item, nbytes=0, timeout=None):
        """Hands an item over, `nbytes` bytes of it by the producer's count; waits for room. Returns True.

        Returns False when `timeout` seconds have passed (None: no limit), or at once when the consumer has
        closed. Raises HandoverClosedError after `finish` or `fail`, TypeError for None, which stands for
        "nothing".
        """
        return self.offer(item, nbytes, deadline_after(timeout))

    def try_put(self, item, nbytes=0):
        """As `put`, without waiting: False if there is no room or the consumer has closed."""
        return self.offer(item, nbytes, -INFINITY)

    def finish(self):
        """Ends the input. Returns False, without effect, if it has been ended before or the consumer has
        closed.
        """
        return self.finish_with(NULL)

    def fail(self, exception):
        """Ends the input with a failure, which takes raise after the items before it. Returns as `finish`."""
        if not isinstance(exception, BaseException):
            raise TypeError(f"exception must be an exception object, not {exception!r}")
        return self.finish_with(<void*>exception)

    def arm_wakeup_producer(self, callback, nbytes=0):
        """Arms a one-shot wake-up for a producer that sleeps elsewhere than in `put`.

        Returns False and arms nothing if an item of `nbytes` bytes has room now or the consumer has closed.
        Otherwise the take that makes room for it, or `close`, calls `callback()` once, in its own thread,
        without a lock. What it raises goes to `sys.unraisablehook`. Arming again replaces it.
        """
        cdef size_t needed = as_bytes(nbytes)
        check_callback(callback)
        cdef void* spare = keep(callback)
        cdef bint armed = False
        self.lock.lock()
        if not self.has_room(needed) and self.end != CLOSED:
            spare, self.armed_producer = self.armed_producer, spare
            self.armed_nbytes = needed
            armed = True
        self.lock.unlock()
        drop(spare)
        return armed

    # ---- consumer

    def take(self, timeout=None):
        """The oldest item; waits for it. Returns None when `timeout` seconds have passed (None: no limit)
        or after a `wake_up`. At the end raises the producer's failure, or HandoverClosedError.
        """
        cdef double deadline = deadline_after(timeout)
        cdef double seconds = 0.0
        cdef bint waited = False
        cdef bint woken = False
        while True:
            item = self.try_take()
            if item is not None:
                return item
            seconds = next_slice(deadline)
            if seconds <= 0.0:
                return None
            with nogil:
                self.lock.lock()
                if self.woken:
                    self.woken = False
                    woken = True
                elif self.first == NULL and self.end == RUNNING:
                    if not waited:
                        self.counts.consumer_waits += 1
                        waited = True
                    self.consumers.sleep(self.lock, seconds)
                self.lock.unlock()
            if woken:
                return None
            PyErr_CheckSignals()

    def try_take(self):
        """The oldest item, or None if there is none now. At the end raises as `take`."""
        cdef void* armed = NULL
        cdef item_t* node = self.fetch(False, &armed)
        if node == NULL:
            return None
        item = take_over(node.value)
        PyMem_RawFree(node)
        if armed != NULL:
            call_back(armed)
        return item

    def take_all(self):
        """Everything that waits, in one step: a list, empty if nothing does. At the end raises as `take`."""
        cdef void* armed = NULL
        items = values(self.fetch(True, &armed))
        if armed != NULL:
            call_back(armed)
        return items

    def close(self):
        """The consumer goes away: returns a list of what waits; every put returns False from then on, every
        take raises HandoverClosedError. The second close returns an empty list.
        """
        cdef void* armed = NULL
        cdef void* dropped
        cdef void* failure
        cdef bint wake = False
        self.lock.lock()
        self.end = CLOSED
        cdef item_t* node = self.unlink(True, &armed, &wake)
        if armed == NULL:
            armed, self.armed_producer = self.armed_producer, NULL
        dropped, self.armed_consumer = self.armed_consumer, NULL
        failure, self.failure = self.failure, NULL
        self.lock.unlock()
        self.producers.wake()
        self.consumers.wake()
        items = values(node)
        drop(dropped)
        drop(failure)
        if armed != NULL:
            call_back(armed)
        return items

    def wake_up(self):
        """Makes a waiting `take` return None, and calls an armed wake-up of the consumer. Any thread.

        If neither is there, the next `take` that would wait returns None, or the next arming returns False.
        """
        cdef void* armed
        cdef bint wake
        self.lock.lock()
        armed, self.armed_consumer = self.armed_consumer, NULL
        self.woken = armed == NULL
        wake = self.consumers.any()
        self.lock.unlock()
        if wake:
            self.consumers.wake()
        if armed != NULL:
            call_back(armed)

    def arm_wakeup_consumer(self, callback):
        """Arms a one-shot wake-up for a consumer that sleeps elsewhere than in `take`.

        Returns False and arms nothing if an item waits, the input has ended, or a `wake_up` is pending,
        which this call then consumes. Otherwise the next put, finish, fail or wake_up calls `callback()`
        once, in its own thread, without a lock. What it raises goes to `sys.unraisablehook`. Arming again
        replaces it.
        """
        check_callback(callback)
        cdef void* spare = keep(callback)
        cdef bint armed = False
        self.lock.lock()
        if self.first == NULL and self.end == RUNNING and not self.woken:
            spare, self.armed_consumer = self.armed_consumer, spare
            armed = True
        self.woken = False
        self.lock.unlock()
        drop(spare)
        return armed

    # ---- watching

    @property
    def ended(self):
        """Whether no item waits and none can come."""
        self.lock.lock()
        ended = self.first == NULL and self.end != RUNNING
        self.lock.unlock()
        return ended

    def __len__(self):
        """Items that wait."""
        self.lock.lock()
        items = self.items
        self.lock.unlock()
        return <Py_ssize_t>items

    def statistics(self):
        """A frozen HandoverStatistics, all of one moment."""
        self.lock.lock()
        cdef counts_t counts = self.counts
        cdef size_t items = self.items
        cdef size_t nbytes = self.nbytes
        cdef bint ended = self.first == NULL and self.end != RUNNING
        self.lock.unlock()
        return HandoverStatistics(
            items=items,
            nbytes=nbytes,
            put=counts.accepted,
            taken=counts.taken,
            refused=counts.refused,
            producer_waits=counts.producer_waits,
            consumer_waits=counts.consumer_waits,
            ended=ended,
        )

    # ---- inside; those without the GIL are called under the lock

    cdef bint has_room(self, size_t nbytes) noexcept nogil:
        if self.first == NULL:
            return True
        if self.items >= self.max_items:
            return False
        return nbytes <= self.max_bytes and self.nbytes <= self.max_bytes - nbytes

    cdef bint offer(self, object item, object nbytes, double deadline) except -1:
        cdef size_t size = as_bytes(nbytes)
        cdef double seconds = 0.0
        cdef void* armed = NULL
        cdef bint wake = False
        cdef bint accepted = False
        cdef bint waited = False
        cdef end_t end
        cdef item_t* node
        if item is None:
            raise TypeError("item must not be None, which stands for 'nothing there' when it is taken")
        node = <item_t*>PyMem_RawMalloc(sizeof(item_t))
        if node == NULL:
            raise MemoryError("no memory for one more item")
        node.next = NULL
        node.value = keep(item)
        node.nbytes = size
        try:
            while True:
                self.lock.lock()
                end = self.end
                accepted = end == RUNNING and self.has_room(size)
                if accepted:
                    self.append(node, &armed, &wake)
                self.lock.unlock()
                if accepted or end != RUNNING:
                    break
                seconds = next_slice(deadline)
                if seconds <= 0.0:
                    break
                with nogil:
                    self.lock.lock()
                    if self.end == RUNNING and not self.has_room(size):
                        if not waited:
                            self.counts.producer_waits += 1
                            waited = True
                        self.producers.sleep(self.lock, seconds)
                    self.lock.unlock()
                PyErr_CheckSignals()
        finally:
            if not accepted:
                drop(node.value)
                PyMem_RawFree(node)
        if wake:
            self.consumers.wake()
        if armed != NULL:
            call_back(armed)
        if accepted:
            return True
        if end == ENDING:
            raise HandoverClosedError("put after finish or fail")
        self.lock.lock()
        self.counts.refused += 1
        self.lock.unlock()
        return False

    cdef void append(self, item_t* node, void** armed, bint* wake) noexcept nogil:
        if self.last == NULL:
            self.first = node
        else:
            self.last.next = node
        self.last = node
        self.items += 1
        self.nbytes += node.nbytes
        self.counts.accepted += 1
        armed[0] = self.armed_consumer
        self.armed_consumer = NULL
        wake[0] = self.consumers.any()

    cdef item_t* unlink(self, bint everything, void** armed, bint* wake) noexcept nogil:
        """Takes out the oldest item, or all, as a chain; says whom that gives room."""
        cdef item_t* chain = self.first
        if chain == NULL:
            return NULL
        if everything or chain.next == NULL:
            if self.end != CLOSED:
                self.counts.taken += self.items
            self.first = self.last = NULL
            self.items = self.nbytes = 0
        else:
            self.first = chain.next
            chain.next = NULL
            self.items -= 1
            self.nbytes -= chain.nbytes
            self.counts.taken += 1
        wake[0] = self.producers.any()
        if self.armed_producer != NULL and self.has_room(self.armed_nbytes):
            armed[0] = self.armed_producer
            self.armed_producer = NULL
        return chain

    cdef bint finish_with(self, void* failure) except -1:
        cdef void* armed = NULL
        cdef bint first
        if failure != NULL:
            keep(<object>failure)
        self.lock.lock()
        first = self.end == RUNNING
        if first:
            self.end = ENDING
            self.failure = failure
            armed = self.armed_consumer
            self.armed_consumer = NULL
        self.lock.unlock()
        if not first:
            drop(failure)
            return False
        # A producer that still waits in put, in another thread, learns that the input has ended.
        self.producers.wake()
        self.consumers.wake()
        if armed != NULL:
            call_back(armed)
        return True

    cdef item_t* fetch(self, bint everything, void** armed) except? NULL:
        """Unlinks the oldest item, or all, as a chain; null if nothing waits. At the end raises."""
        cdef bint wake = False
        cdef end_t end
        cdef void* failure = NULL
        self.lock.lock()
        cdef item_t* chain = self.unlink(everything, armed, &wake)
        end = self.end
        if chain == NULL and self.failure != NULL:
            failure = keep(<object>self.failure)
        self.lock.unlock()
        if wake:
            self.producers.wake()
        if failure != NULL:
            raise take_over(failure)
        if chain == NULL and end != RUNNING:
            raise HandoverClosedError("closed" if end == CLOSED else "finished, and every item taken")
        return chain


cdef list values(item_t* node):
    """The items of an unlinked chain, which is freed."""
    cdef list items = []
    cdef item_t* after
    while node != NULL:
        items.append(take_over(node.value))
        after = node.next
        PyMem_RawFree(node)
        node = after
    return items
