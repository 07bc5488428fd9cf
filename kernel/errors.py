"""The kernel's exceptions.

All derive from `PillarboxError`, and all survive pickling: an error of a worker process reaches its driver.
"""

from typing import Any


class PillarboxError(Exception):
    """Root of the errors that Pillarbox raises; bad arguments are TypeError or ValueError."""


class MailboxClosedError(PillarboxError):
    """A mailbox was asked for something that its state does not allow.

    `state` is the name of the state it was in. `mail` is what was refused: the mail, the tuple of mails of a
    `put_all`, or None when nothing was being put. A pickled copy holds its description, a str, instead.
    """

    def __init__(self, state: object, mail: object = None) -> None:
        self.state: str = str(getattr(state, "name", state))
        self.mail = mail
        super().__init__(self.state, mail)

    def __str__(self) -> str:
        if self.mail is None:
            return f"the mailbox is {self.state} and holds no mail that this take accepts; no more can come"
        mails = self.mail if isinstance(self.mail, tuple) else (self.mail,)
        what = ", ".join(map(_described, mails))
        return f"the mailbox is {self.state}, it accepts mail only while OPEN; refused: {what}"

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.mail, tuple):
            return type(self), (self.state, tuple(map(_described, self.mail)))
        return type(self), (self.state, None if self.mail is None else _described(self.mail))


class WrongThreadError(PillarboxError):
    """A method that is confined to one thread was called by another. Both are named, as text."""

    def __init__(self, expected: str, actual: str) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(expected, actual)

    def __str__(self) -> str:
        return f"this call is confined to thread {self.expected}, it came from thread {self.actual}"


class ForkedError(PillarboxError):
    """A mailbox, queue or hand-over was used in the child of a fork, but was made before it.

    The threads that used it are not in the child, and what they were in the middle of stays undone. `kind` is
    the class, `pid` the process that the call was made in.
    """

    def __init__(self, kind: str, pid: int) -> None:
        self.kind = kind
        self.pid = pid
        super().__init__(kind, pid)

    def __str__(self) -> str:
        return f"this {self.kind} was made before the fork of process {self.pid}, which must make its own"


class CapacityError(PillarboxError):
    """A bounded queue is full. `capacity` is the bound, in entries."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        super().__init__(capacity)

    def __str__(self) -> str:
        return f"the queue is full: it holds {self.capacity} entries, its capacity; emit before the next put"


class QueueClosedError(PillarboxError):
    """Something was put into a result queue after `close`."""

    def __str__(self) -> str:
        return "the result queue is closed; it takes nothing in and emits nothing"


class QueueRestoringError(PillarboxError):
    """Something new was put into a result queue before everything restored. `left` is what is still to be."""

    def __init__(self, left: int) -> None:
        self.left = left
        super().__init__(left)

    def __str__(self) -> str:
        return f"the queue is restoring: {self.left} entries must be admitted before anything new goes in"


class HandoverClosedError(PillarboxError):
    """A hand-over has come to its end. `reason` says which end: finished, failed or closed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return f"the hand-over has ended: {self.reason}"


def _described(mail: object) -> str:
    return mail if isinstance(mail, str) else repr(mail)
