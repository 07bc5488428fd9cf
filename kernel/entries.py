"""The entries of a result queue, as `snapshot` returns and `restore` takes them: plain tuples. Any thread."""

from typing import Any, NamedTuple


class QueueEntry(NamedTuple):
    """Entry of a result queue that has not been emitted, as `snapshot` returns it.

        >>> from pillarbox.kernel import OrderedQueue
        >>> queue = OrderedQueue(4)
        >>> handle = queue.put("a")
        >>> queue.snapshot()
        [QueueEntry(element='a', finished=False, result=None)]

    An immutable tuple; any thread may use it.
    """

    element: Any
    """The element that was put; `WATERMARK` if a watermark was."""
    finished: bool
    """True if the result is there. It is for a watermark."""
    result: Any
    """The result, or the watermark's value; None as long as there is none."""
