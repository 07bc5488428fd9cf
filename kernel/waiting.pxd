# Layout of waiting: time-outs, the slice of a sleep, one-shot callbacks, owned references.

cdef extern from *:
    """
    // The longest that a blocking call sleeps before it looks for signals: the delay of a Ctrl-C.
    static constexpr double PILLARBOX_SLICE_SECONDS = 0.05;
    """
    const double SLICE_SECONDS "PILLARBOX_SLICE_SECONDS"

cdef double deadline_after(object timeout) except? -1.0
cdef double next_slice(double deadline) noexcept nogil
cdef void call_back(void* callback) noexcept
cdef void report(object where) noexcept
cdef void* keep(object reference) noexcept
cdef void drop(void* reference) noexcept
cdef object take_over(void* reference)
