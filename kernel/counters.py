"""The counters that `statistics()` returns, frozen. Plain tuples, so any thread may keep and pass them on.

Each number was exact at some moment during the call. Two numbers need not be of the same moment when other
threads are at work. `put` of a mailbox may hold a part of a put in progress that takes the mails which have
arrived past 65,535, and falls if that is refused.
"""

from typing import NamedTuple

from .states import MailboxState


class MailboxStatistics(NamedTuple):
    """Counters of a `TaskMailbox`, in mails.

        >>> from pillarbox.kernel import Mail, TaskMailbox
        >>> mailbox = TaskMailbox()
        >>> mailbox.put(Mail(print, "hello"))
        >>> counts = mailbox.statistics()
        >>> counts.state.name, counts.put, counts.taken
        ('OPEN', 1, 0)

    An immutable tuple; any thread may use it.
    """

    state: MailboxState
    """State at the time of the call."""
    batch: int
    """Ordinary mails left in the current batch."""
    queued: int
    """Mails that wait outside the batch: urgent ones, arrivals, and what is left for later batches."""
    put: int
    """Mails accepted since the mailbox was made."""
    taken: int
    """Mails handed out by takes and `drain`; those that `close` returned are not among them."""
    urgent_taken: int
    """Those of `taken` that were urgent."""
    rejected: int
    """Mails refused because the mailbox was no longer open."""


class QueueStatistics(NamedTuple):
    """Counters of a result queue, in entries.

        >>> from pillarbox.kernel import UnorderedQueue
        >>> queue = UnorderedQueue(4)
        >>> handle = queue.put("a")
        >>> counts = queue.statistics()
        >>> counts.capacity, counts.in_flight, counts.completed
        (4, 1, 0)

    An immutable tuple; any thread may use it.
    """

    capacity: int
    """Most entries held at once, watermarks included."""
    size: int
    """Entries held now: admitted and not emitted, watermarks included."""
    in_flight: int
    """Entries admitted and not finished."""
    restoring: int
    """Entries to be restored that are not admitted yet."""
    admitted: int
    """Elements put or restored since the queue was made, without watermarks."""
    watermarks: int
    """Watermarks put or restored since the queue was made."""
    restored: int
    """Those of `admitted` and `watermarks` that were restored."""
    completed: int
    """Completions that were the first of their entry."""
    emitted: int
    """Elements and watermarks handed out."""
    renewed: int
    """Attempts begun with `renew`."""
    late: int
    """Completions without effect: second ones, those of earlier attempts or of entries that are gone."""


class HandoverStatistics(NamedTuple):
    """Counters of a `Handover`.

        >>> from pillarbox.kernel import Handover
        >>> handover = Handover(4)
        >>> handover.put("a", nbytes=8)
        True
        >>> counts = handover.statistics()
        >>> counts.items, counts.nbytes, counts.taken
        (1, 8, 0)

    An immutable tuple; any thread may use it.
    """

    items: int
    """Items that wait now."""
    nbytes: int
    """Bytes that wait now, as the producer declared them."""
    put: int
    """Items accepted since the hand-over was made."""
    taken: int
    """Items handed to the consumer; those that `close` returned are not among them."""
    refused: int
    """Puts that ended without acceptance: no room, time-out or closed."""
    producer_waits: int
    """Puts that had to sleep."""
    consumer_waits: int
    """Takes that had to sleep."""
    ended: bool
    """True when no item is left and none can come."""
