"""The entries of a result queue, as `snapshot` returns and `restore` takes them: plain tuples. Any thread."""

from typing import Any, NamedTuple


class QueueEntry(NamedTuple):
    """An entry of a result queue that has not been emitted."""

    element: Any
    """The element that was put; `WATERMARK` if a watermark was."""
    finished: bool
    """True if the result is there. It is for a watermark."""
    result: Any
    """The result, or the watermark's value; None as long as there is none."""
