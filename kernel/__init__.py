"""The kernel: mails, the mailbox of one task thread, result queues, deadlines, the hand-over of two threads.

`pillarbox.kernel.libcurl` is HTTP on a native thread. The kernel knows threads, mails and entries; it
knows no asyncio, no Arrow and no Spark. Every class says in its docstring which of its methods any thread may
call and which are confined to one thread.
"""

if __name__ != "pillarbox.kernel":
    raise ImportError(
        f"the kernel was imported as {__name__!r}; its only name is 'pillarbox.kernel'. "
        "A second name would make second classes that do not match the first."
    )

from pathlib import Path

from .collector import Collector, CollectorFactory
from .counters import HandoverStatistics, MailboxStatistics, QueueStatistics
from .deadlines import Deadlines
from .entries import QueueEntry
from .errors import (
    CapacityError,
    ForkedError,
    HandoverClosedError,
    MailboxClosedError,
    PillarboxError,
    QueueClosedError,
    QueueRestoringError,
    WrongThreadError,
)
from .handover import Handover
from .mail import MAX_PRIORITY, MIN_PRIORITY, Mail
from .mailbox import BACKENDS, TaskMailbox
from .queues import OrderedQueue, UnorderedQueue
from .resultqueue import ResultQueue
from .states import MailboxState
from .watermark import WATERMARK


def get_include() -> str:
    """Return the folder of the headers for C and C++, for a compiler's include path. Any thread.

        >>> from pathlib import Path
        >>> from pillarbox.kernel import get_include
        >>> (Path(get_include()) / "pillarbox_monitor.h").is_file()
        True

    The headers need C++17.
    """
    return str(Path(__file__).parent / "include")


__all__ = [
    "BACKENDS",
    "MAX_PRIORITY",
    "MIN_PRIORITY",
    "WATERMARK",
    "CapacityError",
    "Collector",
    "CollectorFactory",
    "Deadlines",
    "ForkedError",
    "Handover",
    "HandoverClosedError",
    "HandoverStatistics",
    "Mail",
    "MailboxClosedError",
    "MailboxState",
    "MailboxStatistics",
    "OrderedQueue",
    "PillarboxError",
    "QueueClosedError",
    "QueueEntry",
    "QueueRestoringError",
    "QueueStatistics",
    "ResultQueue",
    "TaskMailbox",
    "UnorderedQueue",
    "WrongThreadError",
    "get_include",
]
