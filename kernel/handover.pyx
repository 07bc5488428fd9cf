"""A bounded hand-over of batches from one thread to another, for example from a reading thread to the task
thread.

Bounded by the number of items and by the bytes that the producer declares. An item is whatever the producer
makes of it, best a whole batch, so that the lock is taken once a batch. All methods are thread-safe; the
words producer and consumer say who is meant to call them. Every wait is with the GIL released and lets
Ctrl-C through.

What a hand-over does is in `include/pillarbox_handover.h`, which knows no Python; here are the checks, the
errors, the references and the clock.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.math cimport INFINITY
from libcpp cimport bool as cbool

from pillarbox.kernel.arguments cimport NO_BOUND, as_bound, as_bytes, check_callback
from pillarbox.kernel.gc_container cimport (
    GCContainer, abandon, check_process, is_foreign, visit_reference, visitor_t,
)
from pillarbox.kernel.waiting cimport (
    after_sleep, call_if_armed, deadline_after, drop, keep, next_slice, take_over,
)

from .counters import HandoverStatistics
from .errors import HandoverClosedError


cdef class Handover(GCContainer):
    """Handover(max_items, max_bytes=None)

    Bounded queue between two threads, a producer and a consumer.

        >>> from pillarbox.kernel import Handover
        >>> handover = Handover(2)
        >>> handover.put("a"), handover.try_put("b"), handover.try_put("c")
        (True, True, False)
        >>> handover.finish()
        True
        >>> handover.take_all(), handover.ended
        (['a', 'b'], True)

    1. Items come out in the order in which they went in, each once.
    2. At most `max_items` items and `max_bytes` bytes wait; but an empty hand-over accepts any item, however
       large.
    3. `finish` and `fail` end the input: the items that wait are still handed out, after them every take
       raises HandoverClosedError, or the failure. The first of the two calls decides.
    4. `close` is the consumer's end: it returns the items that wait, and every put returns False at once.
    5. A `wake_up` is never lost: if no consumer waits, the next take that would wait returns None instead.

    put, try_put, finish, fail and arm_wakeup_producer are for the producer's thread, `wake_up` for any
    thread, the others for the consumer's.
    """

    def __cinit__(self, max_items, max_bytes=None):
        self.core.bound(
            as_bound("max_items", max_items, NO_BOUND),
            NO_BOUND if max_bytes is None else as_bound("max_bytes", max_bytes, NO_BOUND),
            share,
        )

    def __dealloc__(self):
        if is_foreign(self):
            abandon(self.core)
        self.release_owned()

    # ---- producer

    def put(self, item, nbytes=0, timeout=None):
        """Put an item of `nbytes` bytes, by the producer's count; waits for room. Returns True.

        Returns False when `timeout` seconds have passed (None: no limit), or at once when the consumer has
        closed. Raises HandoverClosedError after `finish` or `fail`, TypeError for None, which means "no
        item".
        """
        return self.offer(item, nbytes, deadline_after(timeout))

    def try_put(self, item, nbytes=0):
        """As `put`, without waiting: False if there is no room or the consumer has closed."""
        return self.offer(item, nbytes, -INFINITY)

    def finish(self):
        """End the input. Returns False, without effect, if it was ended before or the consumer has closed."""
        return self.finish_with(NULL)

    def fail(self, exception):
        """End the input with a failure, which takes raise after the items before it. Returns as `finish`."""
        if not isinstance(exception, BaseException):
            raise TypeError(f"exception must be an exception object, not {exception!r}")
        # With the traceback that it has now: every take that raises it would make it longer.
        cdef tuple failure = (exception, exception.__traceback__)
        return self.finish_with(<void*>failure)

    def arm_wakeup_producer(self, callback, nbytes=0):
        """Arms a one-shot wake-up for a producer that sleeps elsewhere than in `put`.

        Returns False and arms nothing if an item of `nbytes` bytes has room now or the consumer has closed.
        Otherwise the take that makes room for it, or `close`, calls `callback()` once, in its own thread,
        without a lock. What it raises goes to `sys.unraisablehook`. Arming again replaces it.
        """
        check_process(self)
        cdef size_t needed = as_bytes(nbytes)
        check_callback(callback)
        cdef void* spare = keep(callback)
        cdef bint armed = self.core.arm_producer(&spare, needed)
        drop(spare)
        return armed

    # ---- consumer

    def take(self, timeout=None):
        """Return the oldest item; waits for it.

        Returns None when `timeout` seconds have passed (None: no limit) or after a `wake_up`. At the end
        raises the producer's failure, or HandoverClosedError.
        """
        cdef double deadline = deadline_after(timeout)
        cdef double seconds = 0.0
        cdef cbool waited = False
        cdef bint woken = False
        while True:
            item = self.try_take()
            if item is not None:
                return item
            seconds = next_slice(deadline)
            if seconds <= 0.0:
                return None
            with nogil:
                woken = self.core.await_item(seconds, &waited)
            if woken:
                return None
            after_sleep(self)

    def try_take(self):
        """Return the oldest item, or None if none waits. At the end raises as `take`."""
        cdef void* armed = NULL
        cdef item_t* node = self.fetch(False, &armed)
        if node == NULL:
            return None
        item = take_over(node.value)
        PyMem_RawFree(node)
        call_if_armed(armed)
        return item

    def take_all(self):
        """Return all items that wait, in one step: a list, maybe empty. At the end raises as `take`."""
        cdef void* armed = NULL
        items = values(self.fetch(True, &armed))
        call_if_armed(armed)
        return items

    def close(self):
        """Close the consumer's end: returns a list of the items that wait.

        From then on every put returns False and every take raises HandoverClosedError. The second close
        returns an empty list.
        """
        check_process(self)
        cdef left_t left
        self.core.close(&left)
        items = values(left.items)
        drop(left.consumer)
        drop(left.failure)
        call_if_armed(left.producer)
        return items

    def wake_up(self):
        """Make a waiting `take` return None, and call an armed wake-up of the consumer. Any thread.

        Without either, the next `take` that would wait returns None, or the next arming returns False.
        """
        check_process(self)
        cdef void* armed = NULL
        self.core.wake_up(&armed)
        call_if_armed(armed)

    def arm_wakeup_consumer(self, callback):
        """Arms a one-shot wake-up for a consumer that sleeps elsewhere than in `take`.

        Returns False and arms nothing if an item waits, the input has ended, or a `wake_up` is pending,
        which this call then consumes. Otherwise the next put, finish, fail or wake_up calls `callback()`
        once, in its own thread, without a lock. What it raises goes to `sys.unraisablehook`. Arming again
        replaces it.
        """
        check_process(self)
        check_callback(callback)
        cdef void* spare = keep(callback)
        cdef bint armed = self.core.arm_consumer(&spare)
        drop(spare)
        return armed

    # ---- watching

    @property
    def ended(self):
        """True if no item waits and none can come."""
        check_process(self)
        return self.core.counts().ended

    def __len__(self):
        """Items that wait."""
        check_process(self)
        return <Py_ssize_t>self.core.counts().items

    def statistics(self):
        """A frozen HandoverStatistics, all of one moment."""
        cdef handover_counts_t counts
        check_process(self)
        counts = self.core.counts()
        return HandoverStatistics(
            items=counts.items,
            nbytes=counts.nbytes,
            put=counts.accepted,
            taken=counts.taken,
            refused=counts.refused,
            producer_waits=counts.producer_waits,
            consumer_waits=counts.consumer_waits,
            ended=counts.ended,
        )

    # ---- inside

    cdef int visit_owned(self, visitor_t* visitor) noexcept:
        return self.core.visit(visit_reference, visitor)

    cdef void release_owned(self) noexcept:
        cdef left_t left
        cdef item_t* node
        cdef item_t* after
        self.core.close(&left)
        node = left.items
        while node != NULL:
            after = node.next
            drop(node.value)
            PyMem_RawFree(node)
            node = after
        drop(left.failure)
        drop(left.producer)
        drop(left.consumer)

    cdef bint offer(self, object item, object nbytes, double deadline) except -1:
        cdef size_t size = as_bytes(nbytes)
        cdef double seconds = 0.0
        cdef void* armed = NULL
        cdef cbool waited = False
        cdef PutAnswer answer = PutAnswer.NO_ROOM
        cdef item_t* node
        check_process(self)
        if item is None:
            raise TypeError("item must not be None, which stands for 'nothing there' when it is taken")
        node = <item_t*>PyMem_RawMalloc(sizeof(item_t))
        if node == NULL:
            raise MemoryError("no memory for one more item")
        node.value = keep(item)
        node.nbytes = size
        try:
            while True:
                answer = self.core.put(node, &armed)
                if answer != PutAnswer.NO_ROOM:
                    break
                seconds = next_slice(deadline)
                if seconds <= 0.0:
                    break
                with nogil:
                    self.core.await_room(size, seconds, &waited)
                after_sleep(self)
        finally:
            if answer != PutAnswer.ACCEPTED:
                drop(node.value)
                PyMem_RawFree(node)
        if answer == PutAnswer.ACCEPTED:
            call_if_armed(armed)
            return True
        if answer == PutAnswer.ENDED:
            raise HandoverClosedError("put after finish or fail")
        self.core.refuse()
        return False

    cdef bint finish_with(self, void* failure) except -1:
        cdef void* armed = NULL
        check_process(self)
        if failure != NULL:
            share(failure)
        if not self.core.finish(failure, &armed):
            drop(failure)
            return False
        call_if_armed(armed)
        return True

    cdef item_t* fetch(self, bint everything, void** armed) except? NULL:
        """Takes out the oldest item, or all, as a chain; null if nothing waits. At the end raises."""
        check_process(self)
        cdef taken_t taken
        cdef TakeAnswer answer = self.core.take(everything, &taken)
        if answer == TakeAnswer.ITEMS:
            armed[0] = taken.armed
            return taken.items
        if answer == TakeAnswer.FAILED:
            failure, traceback = take_over(taken.failure)
            raise failure.with_traceback(traceback)
        if answer == TakeAnswer.FINISHED:
            raise HandoverClosedError("finished, and every item taken")
        if answer == TakeAnswer.CLOSED:
            raise HandoverClosedError("closed")
        return NULL


cdef void share(void* failure) noexcept:
    """One more reference; nothing else runs, so a lock may be held."""
    keep(<object>failure)


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
