"""Another project's module on the kernel's C interface: posts into a mailbox, without the GIL and C++."""

from cpython.object cimport PyObject
from libcpp cimport bool as cbool

from pillarbox.kernel.capi cimport PILLARBOX_OPEN, pillarbox_api, pillarbox_import, pillarbox_mailbox

pillarbox_import()


cdef struct sum_t:
    long done
    long let_go


cdef sum_t total


cdef void add(void* number, cbool run) noexcept nogil:
    # Only the mailbox thread calls it, so the sum needs no lock.
    if run:
        total.done += <long>number
    else:
        total.let_go += <long>number


def post_up_to(object mailbox, long last):
    """Post the numbers 1 to `last` into a TaskMailbox, without the GIL; return how many were accepted."""
    cdef pillarbox_mailbox* target = pillarbox_api.of(<PyObject*>mailbox)
    cdef long number, accepted = 0
    with nogil:
        for number in range(1, last + 1):
            if pillarbox_api.post(target, add, <void*>number, 0, 0) == PILLARBOX_OPEN:
                accepted += 1
    return accepted


def sums():
    """Return the sum of the numbers that were run, and that of those that were let go."""
    return total.done, total.let_go
