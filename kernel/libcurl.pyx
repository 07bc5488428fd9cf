"""HTTP by libcurl on a thread of its own, without the GIL; Linux.

libcurl is found in a library that is loaded already, as pycurl has one. The thread is in
`include/pillarbox_http.h`, which knows no Python; here are the references and the futures.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport strlen

from pillarbox.kernel.gc_container cimport GCContainer, check_process, is_foreign

cdef functions_t curl
cdef bint is_loaded = False
cdef str REFUSED = "libcurl refuses {!r} for its option {} (error {})"


def load(path):
    """Finds libcurl in the library at `path`, or in one that it is linked with. Any thread.

    Raises ImportError, with the name "libcurl", that names what is missing.
    """
    global curl, is_loaded
    cdef functions_t found
    cdef bytes encoded = path.encode()
    cdef const char* missing = found.load(encoded)
    if missing != NULL:
        raise ImportError(f"libcurl was not found: {missing.decode()} is missing in {path}", name="libcurl")
    curl = found
    is_loaded = True


cdef class HeaderLines:
    """HeaderLines(lines)

    Lines of headers, each bytes such as b"name: value", for any number of requests.
    """

    def __cinit__(self, lines):
        cdef slist_t* grown
        for line in lines:
            grown = curl.slist_append(self.lines, checked_text(line))
            if grown == NULL:
                raise MemoryError("no memory for the headers")
            self.lines = grown

    def __dealloc__(self):
        curl.slist_free_all(self.lines)


cdef class HttpRequest:
    """A request that `HttpThread.send` has made; its answer, once its future is done. On one thread.

    As a buffer it is the bytes of its vectors, which may be written to; empty without them.
    """

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        cdef Buffer* block = &self.core.vectors.block
        PyBuffer_FillInfo(buffer, self, block.data(), <Py_ssize_t>block.size(), False, flags)

    @property
    def has_vectors(self):
        """True if the answer was read as the vectors that were asked for; `body` is empty then."""
        return self.core.has_vectors

    @property
    def are_finite(self):
        """True if the vectors are those of finite numbers, read as float32."""
        return self.core.vectors.are_finite

    @property
    def tokens(self):
        """The number of tokens that came with the vectors, or None."""
        return None if self.core.vectors.tokens < 0 else self.core.vectors.tokens

    @property
    def code(self):
        """The number of libcurl's error, 0 for none, or a constant of this module."""
        return self.core.code

    @property
    def status(self):
        return self.core.status

    @property
    def has_other_coding(self):
        """True if the answer has a content coding that the thread has left as it is."""
        return self.core.coding == coding_t.OTHER

    @property
    def is_reused(self):
        """True if the request failed on a connection that had been kept."""
        return self.core.is_reused

    @property
    def quiet_seconds(self):
        """Seconds from the last byte of the request that was sent to the error; 0 if not all were."""
        return self.core.quiet_seconds

    @property
    def body_sent(self):
        """Bytes of the body that were given to the system."""
        return self.core.body_sent

    @property
    def connect_code(self):
        """The status with which a proxy refused a tunnel, if the request failed; 0 for none."""
        return self.core.connect_code

    @property
    def os_errno(self):
        """Of the system call that failed, or 0."""
        return self.core.os_errno

    @property
    def request_nbytes(self):
        """Bytes of the request that were sent, if it failed."""
        return self.core.request_nbytes

    @property
    def message(self):
        """libcurl's words about the error."""
        return self.core.message.decode(errors="replace")

    @property
    def head(self):
        """The lines of all headers, those of interim answers and of a proxy first: bytes."""
        return PyBytes_FromStringAndSize(self.core.head.data(), self.core.head.size())

    @property
    def body(self):
        """The decompressed answer: bytes, made anew for each call."""
        return PyBytes_FromStringAndSize(self.core.answer.data(), self.core.answer.size())


cdef class HttpThread(GCContainer):
    """HttpThread(options, options_of_all, max_answer_bytes=None)

    Sends requests by one multi handle of libcurl on a native thread. All methods are for one thread, that of
    an event loop which watches `fileno()` and calls `resolve_futures` when it is readable.

    options: pairs of the number of an option of libcurl's easy handles and an int or bytes. options_of_all:
    of its multi handle, ints. max_answer_bytes: of an answer, decompressed; a longer one ends with TOO_LARGE.
    Raises ValueError for an option that libcurl refuses, OSError without descriptors.

    1. Each future of `send` is done once, with None, after the request has ended, however it has ended; but
       one that is done or cancelled before is left alone.
    2. After `close` all futures are done, and the thread has ended.
    3. In the child of a fork every call raises ForkedError.
    """

    def __cinit__(self, options, options_of_all, max_answer_bytes=None):
        cdef int refused
        if not is_loaded:
            raise RuntimeError("libcurl is not loaded: call load first")
        self.core = new Driver(curl)
        if not self.core.open():
            raise OSError("no memory or no descriptors for libcurl")
        for number, value in options:
            if isinstance(value, bytes):
                refused = self.core.set_text(number, checked_text(value))
            else:
                refused = self.core.set_number(number, value)
            if refused:
                raise ValueError(REFUSED.format(value, number, refused))
        for number, value in options_of_all:
            refused = self.core.set_of_all(number, value)
            if refused:
                raise ValueError(REFUSED.format(value, number, refused))
        if max_answer_bytes is not None:
            self.core.set_max_answer(max_answer_bytes)
        self.core.start()

    def __dealloc__(self):
        if self.core == NULL or is_foreign(self):
            # The thread is not in the child of a fork; what it was in the middle of stays as it is.
            return
        with nogil:
            self.core.stop()
        self.resolve()
        del self.core

    def fileno(self):
        """The descriptor that is readable when requests have ended."""
        check_process(self)
        return self.core.results_ready()

    def send(self, future, bytes method not None, bytes url not None, HeaderLines headers not None,
             bytes proxy not None, bytes body, size_t vectors=0, bint is_fresh=False,
             HeaderLines connect_to=None):
        """Prepares a request for the next `flush`; returns it. proxy: b"" for none. body: None for none.

        vectors: the number of vectors in base64 that the thread reads of an answer in OpenAI's form; one
        that is another one, or has a status but 200, is left in `body`. is_fresh: on a new connection.
        connect_to: a line b"::ADDRESS:" with the address to connect to in place of the URL's host, which
        stays the name for TLS and the header Host. Raises ValueError for a zero byte in an argument.
        """
        check_process(self)
        cdef HttpRequest request = HttpRequest.__new__(HttpRequest)
        request.future = future
        request.method = method
        request.url = url
        request.headers = headers
        request.proxy = proxy
        request.sent = body
        request.core.owner = request.cancel.owner = <void*>request
        request.core.method = checked_text(method)
        request.core.url = checked_text(url)
        request.core.proxy = checked_text(proxy)
        request.core.headers = headers.lines
        if connect_to is not None:
            request.connect_to = connect_to
            request.core.connect_to = connect_to.lines
        request.core.vectors_wanted = vectors
        request.core.is_fresh = is_fresh
        if body is not None:
            request.core.body = <const char*>body
            request.core.body_nbytes = <size_t>len(body)
        # The core's, until it comes back.
        Py_INCREF(request)
        self.core.add(&request.core)
        return request

    def cancel(self, HttpRequest request not None):
        """Ends a request with the next `flush`, if it has not ended. Once for each request."""
        check_process(self)
        request.cancel.cancels = &request.core
        Py_INCREF(request)
        self.core.add(&request.cancel)

    def flush(self):
        """Gives the thread all that was prepared."""
        check_process(self)
        self.core.flush()

    def resolve_futures(self):
        """Resolves the futures of the requests that have ended."""
        check_process(self)
        self.core.read_results_ready()
        self.resolve()

    def close(self):
        """Ends all requests, resolves their futures, and ends the thread. May be called again."""
        check_process(self)
        with nogil:
            self.core.stop()
        self.resolve()

    cdef void resolve(self) noexcept:
        cdef order_t* order = self.core.take()
        while order != NULL:
            request = <HttpRequest>order.owner
            Py_DECREF(request)
            if order.cancels == NULL:
                future = request.future
                request.future = None
                # Vectors may live long; what was sent for them need not.
                request.sent = None
                request.headers = None
                try:
                    if not future.done():
                        future.set_result(None)
                except RuntimeError:
                    # Its loop is closed: nobody waits.
                    pass
            order = self.core.take()


cdef const char* checked_text(bytes text) except NULL:
    """The text for libcurl, which takes a zero byte for its end."""
    cdef const char* start = text
    if strlen(start) != <size_t>len(text):
        raise ValueError("an argument of libcurl must not hold a zero byte")
    return start


CLOSED_MEANWHILE = -1
BROKEN_OFF = -3
TOO_LARGE = -4
BADLY_CODED = -5
