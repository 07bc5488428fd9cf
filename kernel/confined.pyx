"""Confinement: an object whose state belongs to one thread, and the check of it.

The base of the mailbox and of the result queues. The check is one comparison of thread idents,
behind one of processes.
"""

import threading

from pillarbox.kernel.holder cimport Holder, check_process

from .errors import WrongThreadError


cdef class Confined(Holder):
    """Belongs to one thread, its owner: the thread that made it, until another adopts it."""

    def __cinit__(self):
        self.owner.store(PyThread_get_thread_ident())

    cdef int wrong_thread(self) except -1:
        raise WrongThreadError(
            described_thread(self.owner.load()), described_thread(PyThread_get_thread_ident())
        )

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
        cdef unsigned long former = self.owner.load()
        cdef unsigned long caller = PyThread_get_thread_ident()
        if ended is not None:
            check_ended(ended, former, self.lent)
        if former == caller:
            return
        if ended is None and not self.may_change_owner():
            self.wrong_thread()
        if not self.owner.compare_exchange_strong(former, caller):
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
