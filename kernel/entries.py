"""What `snapshot` of a result queue returns and `restore` takes: one entry, as a plain tuple. Any thread."""

from typing import Any, NamedTuple


class QueueEntry(NamedTuple):
    """An entry of a result queue that has not been emitted."""

    element: Any
    """What was put; `WATERMARK` if a watermark was."""
    finished: bool
    """Whether the result is there. It is for a watermark."""
    result: Any
    """The result, or the watermark's value; None as long as there is none."""
