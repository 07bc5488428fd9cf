"""The kernel's exceptions.

All derive from `PillarboxError`, and all survive pickling: an error of a worker process reaches its driver.
"""

from typing import Any


class PillarboxError(Exception):
    """Base class of the errors that Pillarbox raises; bad arguments are TypeError or ValueError.

        >>> from pillarbox import PillarboxError, async_map
        >>> async def call(row):
        ...     return 1 // row
        >>> try:
        ...     list(async_map([0], call))
        ... except PillarboxError as error:
        ...     print(type(error).__name__)
        CallFailed

    All survive pickling, so that an error of a worker process reaches its driver.
    """


class MailboxClosedError(PillarboxError):
    """Error of a mailbox whose state does not allow the call.

        >>> from pillarbox.kernel import Mail, MailboxClosedError, TaskMailbox
        >>> mailbox = TaskMailbox()
        >>> mailbox.close()
        []
        >>> try:
        ...     mailbox.put(Mail(print, "hello"))
        ... except MailboxClosedError as error:
        ...     print(error.state, error.mail.priority)
        CLOSED 0

    `state` is the name of the mailbox's state. `mail` is the refused mail, the tuple of mails of a `put_all`,
    or None for a take. A pickled copy holds its description, a str, instead.
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
    """Error of a method that is confined to one thread and was called by another.

        >>> import threading
        >>> from pillarbox.kernel import TaskMailbox, WrongThreadError
        >>> mailbox = TaskMailbox()
        >>> def take():
        ...     try:
        ...         mailbox.try_take()
        ...     except WrongThreadError as error:
        ...         print("MainThread" in error.expected, "other" in error.actual)
        >>> thread = threading.Thread(target=take, name="other")
        >>> thread.start(); thread.join()
        True True

    `expected` and `actual` name both threads, as text.
    """

    def __init__(self, expected: str, actual: str) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(expected, actual)

    def __str__(self) -> str:
        return f"this call is confined to thread {self.expected}, it came from thread {self.actual}"


class ForkedError(PillarboxError):
    """Error of a mailbox, queue or hand-over that was made before a fork and is used in the child.

        >>> from pillarbox.kernel import ForkedError
        >>> print(ForkedError("TaskMailbox", 4711))
        this TaskMailbox was made before the fork of process 4711, which must make its own

    The threads that used it do not exist in the child, and their unfinished work stays undone. `kind` is the
    class, `pid` the process of the call.
    """

    def __init__(self, kind: str, pid: int) -> None:
        self.kind = kind
        self.pid = pid
        super().__init__(kind, pid)

    def __str__(self) -> str:
        return f"this {self.kind} was made before the fork of process {self.pid}, which must make its own"


class CapacityError(PillarboxError):
    """Error of a put into a full queue. `capacity` is the limit, in entries.

        >>> from pillarbox.kernel import CapacityError, OrderedQueue
        >>> queue = OrderedQueue(1)
        >>> handle = queue.put("a")
        >>> try:
        ...     queue.put("b")
        ... except CapacityError as error:
        ...     print(error.capacity)
        1

    Emit entries before the next put.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        super().__init__(capacity)

    def __str__(self) -> str:
        return f"the queue is full: it holds {self.capacity} entries, its capacity; emit before the next put"


class QueueClosedError(PillarboxError):
    """Error of a put into a result queue after `close`.

        >>> from pillarbox.kernel import OrderedQueue, QueueClosedError
        >>> queue = OrderedQueue(1)
        >>> queue.close()
        []
        >>> try:
        ...     queue.put("a")
        ... except QueueClosedError as error:
        ...     print(error)
        the result queue is closed; it takes nothing in and emits nothing

    A closed queue emits nothing either.
    """

    def __str__(self) -> str:
        return "the result queue is closed; it takes nothing in and emits nothing"


class QueueRestoringError(PillarboxError):
    """Error of a put into a result queue before all restored entries are admitted. `left` counts them.

        >>> from pillarbox.kernel import OrderedQueue, QueueRestoringError
        >>> queue = OrderedQueue(4)
        >>> queue.restore([("a", False, None)])
        >>> try:
        ...     queue.put("b")
        ... except QueueRestoringError as error:
        ...     print(error.left)
        1

    `admit_restored` admits them.
    """

    def __init__(self, left: int) -> None:
        self.left = left
        super().__init__(left)

    def __str__(self) -> str:
        return f"the queue is restoring: {self.left} entries must be admitted before anything new goes in"


class HandoverClosedError(PillarboxError):
    """Error of a call after the end of a hand-over. `reason` is "finished", "failed" or "closed".

        >>> from pillarbox.kernel import Handover, HandoverClosedError
        >>> handover = Handover(4)
        >>> handover.finish()
        True
        >>> try:
        ...     handover.take()
        ... except HandoverClosedError as error:
        ...     print(error)
        the hand-over has ended: finished, and every item taken

    The producer's failure, if there is one, is raised in its place.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return f"the hand-over has ended: {self.reason}"


def _described(mail: object) -> str:
    return mail if isinstance(mail, str) else repr(mail)
