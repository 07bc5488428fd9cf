# Layout of the thread of libcurl: `include/pillarbox_http.h`. Linux.

from libcpp cimport bool as cbool
from libcpp.string cimport string

from pillarbox.kernel.gc_container cimport GCContainer


cdef extern from "pillarbox_libcurl.h" namespace "pillarbox::libcurl" nogil:
    cdef struct slist_t:
        pass

    cdef cppclass functions_t:
        const char* load(const char* path) noexcept
        slist_t* slist_append(slist_t* lines, const char* line) noexcept
        void slist_free_all(slist_t* lines) noexcept


cdef extern from "pillarbox_buffer.h" namespace "pillarbox" nogil:
    cdef cppclass Buffer:
        char* data() noexcept
        size_t size() noexcept


cdef extern from "pillarbox_vectors.h" namespace "pillarbox" nogil:
    cdef cppclass vectors_t:
        Buffer block
        long long tokens
        cbool are_finite


cdef extern from "pillarbox_http.h" namespace "pillarbox::http" nogil:
    cdef cppclass order_t:
        void* owner
        request_t* cancels

    cdef enum class coding_t:
        NONE
        INFLATED
        OTHER

    cdef cppclass request_t(order_t):
        const char* url
        const char* method
        const char* proxy
        slist_t* headers
        slist_t* connect_to
        const char* body
        size_t body_nbytes
        size_t vectors_wanted
        cbool is_fresh
        int code
        long status
        coding_t coding
        long os_errno
        long request_nbytes
        long connect_code
        cbool is_reused
        double quiet_seconds
        size_t body_sent
        string message
        Buffer head
        Buffer answer
        vectors_t vectors
        cbool has_vectors

    cdef cppclass Driver:
        Driver(const functions_t& curl) except +
        cbool open() noexcept
        int set_number(int option, long value) noexcept
        int set_text(int option, const char* value) noexcept
        int set_of_all(int option, long value) noexcept
        void set_max_answer(size_t nbytes) noexcept
        void start() except +
        void add(order_t* order) noexcept
        void flush() noexcept
        int results_ready() noexcept
        void read_results_ready() noexcept
        order_t* take() noexcept
        void stop() except +


cdef class HeaderLines:
    cdef slist_t* lines


cdef class HttpRequest:
    cdef request_t core
    cdef order_t cancel
    cdef object future
    cdef bytes method
    cdef bytes url
    cdef HeaderLines headers
    cdef HeaderLines connect_to
    cdef bytes proxy
    cdef bytes sent


cdef class HttpThread(GCContainer):
    cdef Driver* core

    cdef void resolve(self) noexcept
