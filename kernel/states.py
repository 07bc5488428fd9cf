"""The states of a mailbox. A state never goes back."""

import enum


class MailboxState(enum.IntEnum):
    """`OPEN` -> `QUIESCED` -> `CLOSED`."""

    OPEN = 0
    """Takes mail in and gives mail out."""
    QUIESCED = 1
    """Takes no more mail in; what is there can still be taken."""
    CLOSED = 2
    """Holds nothing and gives nothing."""
