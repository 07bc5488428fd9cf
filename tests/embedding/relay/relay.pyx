"""Another project's module on the kernel: puts and reads mails through their C layout, not through Python."""

from pillarbox.kernel cimport LEAST_PRIORITY, URGENT, Mail, TaskMailbox


def relay(TaskMailbox source, TaskMailbox target):
    """Move every mail from one mailbox to the other; return how many, and how many of them are urgent."""
    cdef Mail mail
    cdef int moved = 0, urgent = 0
    while True:
        mail = source.take_one(LEAST_PRIORITY, 0)
        if mail is None:
            return moved, urgent
        if mail.node.flags & URGENT:
            urgent += 1
        target.offer(mail)
        moved += 1
