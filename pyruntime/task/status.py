"""What an input says after each call: whether there is more, and how it ends. Plain values, any thread.

The five states are those of Flink's `DataInputStatus`.
"""

from __future__ import annotations

import enum


class InputStatus(enum.Enum):
    """The answer of `TaskInput.emit_next`. Any thread.

    `MORE_AVAILABLE` and `NOTHING_AVAILABLE` alternate freely. Then comes one of `END_OF_DATA` and `STOPPED`,
    once; after it the input gives no record and no watermark, only barriers. `END_OF_INPUT` is last. An
    input that says it without one of the other two has come to the end of its data as well.
    """

    MORE_AVAILABLE = "more available"
    """Call again; there may be another element at once."""
    NOTHING_AVAILABLE = "nothing available"
    """Call again when the future of `available()` is done."""
    END_OF_DATA = "end of data"
    """All records have been read: the operators are finished, with all that they still hold."""
    STOPPED = "stopped"
    """No record comes any more, though there are some: the operators are not finished."""
    END_OF_INPUT = "end of input"
    """Nothing comes any more: the task may end."""
