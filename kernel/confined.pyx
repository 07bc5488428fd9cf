"""Confinement: an object whose state belongs to one thread, and the check of it.

The base of the mailbox and of the result queues. The check is one comparison of numbers of threads,
behind one of processes. The system gives the ident of a thread that has ended to a later one; no number is
given twice.
"""

import threading

from pillarbox.kernel.gc_container cimport GCContainer, check_process

from .errors import WrongThreadError


cdef extern from *:
    """
    #include <atomic>
    static std::atomic<unsigned long long> pillarbox_threads{0};
    static thread_local unsigned long long pillarbox_number = 0;

    static unsigned long long pillarbox_thread_number() noexcept {
        if (pillarbox_number == 0) pillarbox_number = ++pillarbox_threads;
        return pillarbox_number;
    }
    """
    unsigned long long pillarbox_thread_number() noexcept nogil


cdef unsigned long long thread_number() noexcept nogil:
    return pillarbox_thread_number()


cdef bint take_up(Confined self) noexcept with gil:
    """Makes the calling thread the owner if it is the one that was named, and no other is the owner."""
    if self.ident.load() != PyThread_get_thread_ident():
        return False
    if self.named_native_id != 0 and self.named_native_id != <unsigned long>threading.get_native_id():
        return False
    return self.change_owner(0)


cdef class Confined(GCContainer):
    """Belongs to one thread, its owner: the thread that made it, until another adopts it."""

    def __cinit__(self):
        self.owner.store(thread_number())
        self.ident.store(PyThread_get_thread_ident())

    cdef int name_owner(self, object thread) except -1:
        """Makes a thread, a started Thread or an ident, the owner from its first use of the object on."""
        ident = getattr(thread, "ident", thread)
        if not isinstance(ident, int) or ident <= 0:
            raise ValueError(f"thread must be None, a started Thread or its ident, not {thread!r}")
        if ident == PyThread_get_thread_ident():
            return 0
        for other in threading.enumerate():
            if other.ident == ident:
                self.named_native_id = other.native_id or 0
        self.ident.store(ident)
        self.owner.store(0)
        return 0

    cdef bint change_owner(self, unsigned long long former) noexcept:
        """Makes the calling thread the owner in the place of another; False if that has changed meanwhile."""
        if not self.owner.compare_exchange_strong(former, thread_number()):
            return False
        self.ident.store(PyThread_get_thread_ident())
        return True

    cdef int wrong_thread(self) except -1:
        cdef unsigned long owner = self.ident.load()
        cdef unsigned long caller = PyThread_get_thread_ident()
        expected = f"one that has ended (ident {owner})" if owner == caller else described_thread(owner)
        raise WrongThreadError(expected, described_thread(caller))

    cdef bint may_change_owner(self) except -1:
        return False

    def adopt(self, *, ended=None):
        """Makes the calling thread the owner. Returns nothing; without effect if it is the owner already.

        Any thread. Allowed while nothing in the object is private to the present owner: the class says when
        that is. Otherwise, or when two threads adopt at once and this one lost, WrongThreadError. The former
        owner must not be using the object at the same time; its next confined call raises WrongThreadError.

        `ended` is the owner's `threading.Thread` when that has ended: then whatever it has left, in whatever
        state, is the caller's. ValueError if this thread is not the owner, or has not ended, or if native
        code or another thread, which may have got the same ident, is the owner by now. One thread does this.
        """
        check_process(self)
        cdef unsigned long long former = self.owner.load()
        if ended is not None:
            check_ended(ended, self.ident.load(), self.lent)
        if is_owner(self):
            return
        if ended is None and not self.may_change_owner():
            self.wrong_thread()
        if not self.change_owner(former):
            self.wrong_thread()


cdef int check_ended(object thread, unsigned long owner, bint lent) except -1:
    if not isinstance(thread, threading.Thread):
        raise TypeError(f"ended must be None or a threading.Thread, not {thread!r}")
    if thread.ident is None or <unsigned long>thread.ident != owner:
        raise ValueError(f"ended must be the owner, {described_thread(owner)}, not {thread!r}")
    if thread.is_alive():
        raise ValueError(f"ended must be a thread that has ended, not {thread!r}")
    # The system gives the ident of a thread that has ended to another one.
    for other in threading.enumerate():
        if other.ident == thread.ident and other is not threading.current_thread():
            raise ValueError(f"ended must be the owner, which by now is {other!r}, not {thread!r}")
    if lent:
        raise ValueError(f"ended must be the owner, which by now is native code, not {thread!r}")
    return 0


def described_thread(ident):
    """Name and ident of a thread, as text. Any thread."""
    for thread in threading.enumerate():
        if thread.ident == ident:
            return f"{thread.name!r} (ident {ident})"
    return f"with ident {ident} (not a running Python thread)"
