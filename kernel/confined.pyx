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

    def adopt(self):
        """Makes the calling thread the owner. Returns nothing; without effect if it is the owner already.

        Any thread. Allowed while nothing in the object is private to the present owner: the class says when
        that is. Otherwise, or when two threads adopt at once and this one lost, WrongThreadError. The former
        owner must not be using the object at the same time; its next confined call raises WrongThreadError.
        """
        check_process(self)
        cdef unsigned long former = self.owner.load()
        cdef unsigned long caller = PyThread_get_thread_ident()
        if former == caller:
            return
        if not self.may_change_owner() or not self.owner.compare_exchange_strong(former, caller):
            self.wrong_thread()


def described_thread(ident):
    """Name and ident of a thread, as text. Any thread."""
    for thread in threading.enumerate():
        if thread.ident == ident:
            return f"{thread.name!r} (ident {ident})"
    return f"with ident {ident} (not a running Python thread)"
