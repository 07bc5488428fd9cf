# Layout of waiting: time-outs, the slice of a sleep, one-shot callbacks, owned references.

from pillarbox.kernel.gc_container cimport GCContainer


cdef extern from *:
    """
    // The longest that a call on the main thread sleeps before it looks for signals: the delay of a Ctrl-C.
    static constexpr double PILLARBOX_SLICE_SECONDS = 0.05;
    // On another one: what the system's clocks take.
    static constexpr double PILLARBOX_LONGEST_SLEEP_SECONDS = 1e6;
    """
    const double SLICE_SECONDS "PILLARBOX_SLICE_SECONDS"
    const double LONGEST_SLEEP_SECONDS "PILLARBOX_LONGEST_SLEEP_SECONDS"

cdef double deadline_after(object timeout) except? -1.0
cdef double next_slice(double deadline) except? -2.0
cdef void call_back(void* callback) noexcept
cdef void report(object where) noexcept
cdef void* keep(object reference) noexcept
cdef void drop(void* reference) noexcept
cdef object take_over(void* reference)
cdef int after_sleep(GCContainer self) except -1


cdef inline void call_if_armed(void* callback) noexcept:
    """Calls and drops a wake-up that a core has handed back; null is none."""
    if callback != NULL:
        call_back(callback)
