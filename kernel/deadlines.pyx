"""Deadlines: timers that are kept in order for a thread which looks itself whether they are due.

They call nothing and wait for nothing. The timers are in `include/pillarbox_deadlines.h`, which knows no
Python; here are the checks, the clock, and the references, which are released when nothing is half-done.

One thread, the owner, uses them; others may look. For that the calls into the core are critical sections:
nothing where there is a GIL, the object's own lock where there is none. No foreign code runs in them.
"""

from cython cimport critical_section
from libc.math cimport INFINITY, isfinite

from pillarbox.kernel.arguments cimport NO_BOUND, as_double, as_handle, as_limit
from pillarbox.kernel.confined cimport check_owner
from pillarbox.kernel.gc_container cimport abandon, check_process, is_foreign, visit_reference, visitor_t
from pillarbox.kernel.monitor cimport steady_seconds
from pillarbox.kernel.waiting cimport drop, keep, take_over


cdef class Deadlines(Confined):
    """Deadlines(clock=None)

    Timers in the order of their deadlines, for a thread that polls them.

        >>> from pillarbox.kernel import Deadlines
        >>> from pillarbox.testing import FakeClock
        >>> clock = FakeClock()
        >>> timers = Deadlines(clock)
        >>> late, early = timers.arm(5.0, "late"), timers.arm(1.0, "early")
        >>> clock.advance(2.0)
        >>> timers.expire(), timers.next_deadline()
        (['early'], 5.0)

    1. An armed timer is returned once: by `cancel`, `expire` or `clear`.
    2. `expire` returns the timers that are due, in the order of their deadlines; of those with the same
       deadline the one that was armed first comes first.
    3. Arming, cancelling and expiring cost a constant when all timers have one length, and at worst the
       logarithm of the number of different lengths, however many timers wait.
    4. Time does not go back. When the clock does, its latest reading holds until the clock has passed it.

    `clock` returns the time in seconds, a finite float; `arm` and `expire` call it. None is the kernel's own
    monotonic clock. Its times mean nothing to another clock. TypeError if `clock` is not callable.

    Confined to the owner, the thread that makes them (see `adopt`; allowed while no timer waits): arm,
    cancel, expire, clear, and `sys.getsizeof`. Thread-safe: peek, next_deadline, len.

    The structure, a list for each length and a heap over the lists, is that of libevent's common timeouts
    (`event_base_init_common_timeout`).
    """

    def __cinit__(self, clock=None):
        if clock is not None and not callable(clock):
            raise TypeError(f"clock must be None or callable, not {clock!r}")
        self.clock = clock

    def __dealloc__(self):
        if is_foreign(self):
            abandon(self.core)
        self.core.let_go(drop)

    def arm(self, seconds, payload):
        """Arm a timer that is due in `seconds`, a finite number of at least 0; returns its handle, an int.
        `payload` is any object. Confined.

        Raises TypeError or ValueError for other `seconds`, MemoryError, and the errors of the clock; then
        nothing is armed.
        """
        cdef double length
        cdef int64_t handle
        cdef void* owned
        check_owner(self)
        length = as_length(seconds)
        if not isfinite(self.time() + length):
            raise ValueError(f"seconds must give a deadline that fits a float, not {seconds!r}")
        owned = keep(payload)
        try:
            with critical_section(self):
                handle = self.core.arm(length, owned)
        except MemoryError:
            drop(owned)
            raise
        return handle

    def cancel(self, handle):
        """Cancel a timer and drop its payload; returns True. Confined.

        Returns False, without effect, if the handle is not that of a timer that waits: it has expired, or it
        never existed. TypeError if it is not an int.
        """
        cdef void* owned = NULL
        cdef int64_t number
        check_owner(self)
        number = as_handle(handle)
        with critical_section(self):
            self.core.cancel(number, &owned)
        if owned == NULL:
            return False
        drop(owned)
        return True

    def expire(self, limit=None):
        """Remove the timers that are due now, at most `limit` (None: all): a list of payloads, in order.
        Confined.

        Raises ValueError if `limit` is negative, MemoryError, and the errors of the clock; then nothing is
        removed.
        """
        cdef size_t most = NO_BOUND
        check_owner(self)
        if limit is not None:
            most = as_limit(limit, "timers")
        return self.take_out(self.time(), most)

    def clear(self):
        """Remove every timer, due or not: a list of payloads, in the order of their deadlines. Confined."""
        check_owner(self)
        return self.take_out(INFINITY, NO_BOUND)

    def next_deadline(self):
        """The moment at which the first timer is due, in seconds on the clock; None if no timer waits.

        Thread-safe; to a thread that is not the owner it may say what was true a moment ago.
        """
        cdef double due
        check_process(self)
        due = self.core.next_due()
        return None if due == INFINITY else due

    def peek(self):
        """The timer that is due first, which stays armed: `(payload, deadline)`; None if no timer waits.
        Thread-safe.
        """
        cdef void* payload = NULL
        cdef double due = 0.0
        first = None
        check_process(self)
        with critical_section(self):
            if self.core.peek(&payload, &due):
                first = <object>payload
        return None if payload == NULL else (first, due)

    def __len__(self):
        """Timers that wait. Thread-safe."""
        check_process(self)
        return self.core.size()

    def __sizeof__(self):
        """Bytes of the timers and of what finds them, without their payloads. Confined."""
        check_owner(self)
        return object.__sizeof__(self) + self.core.bytes()

    # ---- inside

    cdef int visit_owned(self, visitor_t* visitor) noexcept:
        return self.core.visit(visit_reference, visitor)

    cdef void release_owned(self) noexcept:
        self.core.let_go(drop)

    cdef bint may_change_owner(self) except -1:
        return self.core.size() == 0

    cdef double time(self) except? -1.0:
        """Reads the clock; returns the time, which does not go back."""
        cdef double reading
        if self.clock is None:
            return self.core.tell(steady_seconds())
        now = self.clock()
        reading = as_double("clock must return a number of seconds", now)
        if not isfinite(reading):
            raise ValueError(f"clock must return a finite number of seconds, not {now!r}")
        return self.core.tell(reading)

    cdef list take_out(self, double until, size_t most):
        cdef void* owned = NULL
        cdef Py_ssize_t due = <Py_ssize_t>self.core.count_due(until, most)
        cdef Py_ssize_t taken = 0
        # First the list, for which there may be no memory; after it nothing can fail.
        cdef list payloads = [None] * due
        with critical_section(self):
            while taken < due and self.core.pop(until, &owned):
                payloads[taken] = take_over(owned)
                taken += 1
        # Making a list may collect garbage, and what is collected may have used these deadlines.
        for _ in range(due - taken):
            payloads.pop()
        return payloads


cdef double as_length(object seconds) except? -1.0:
    cdef double length = as_double("seconds must be a number", seconds)
    if not isfinite(length) or length < 0.0:
        raise ValueError(f"seconds must be a finite number of at least 0, not {seconds!r}")
    return length
