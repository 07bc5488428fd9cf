"""The states of a mailbox. A state never goes back."""

import enum


class MailboxState(enum.IntEnum):
    """State of a mailbox: `OPEN`, then `QUIESCED`, then `CLOSED`, never back.

        >>> from pillarbox.kernel import MailboxState, TaskMailbox
        >>> mailbox = TaskMailbox()
        >>> mailbox.quiesce()
        >>> mailbox.state is MailboxState.QUIESCED
        True

    Any thread reads it as `TaskMailbox.state`.
    """

    OPEN = 0
    """Takes mail in and gives mail out."""
    QUIESCED = 1
    """Takes no more mail in; what is there can still be taken."""
    CLOSED = 2
    """Holds nothing and gives nothing."""
