# The lock and the place to sleep of `include/pillarbox_monitor.h`, for Cython.

cdef extern from "pillarbox_monitor.h" namespace "pillarbox" nogil:
    cdef cppclass Lock:
        void lock() noexcept
        void unlock() noexcept

    cdef cppclass Sleepers:
        void sleep(Lock& lock, double seconds) except +
        bint any() noexcept
        void wake() noexcept

    double steady_seconds() noexcept
