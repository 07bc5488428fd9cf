"""`Sink`: the end of a job, where rows become visible in two phases, together with checkpoints.

All methods of a sink are called on one thread, the job's, and may block; rows wait meanwhile, up to a limit.
The idea is Flink's `TwoPhaseCommitSinkFunction`.
"""

# Why `recover` returns a bool. What a sink has prepared survives the end of its process in a folder of files,
# and does not in a transaction of Kafka, which is aborted when its producer comes again. A job over a sink of
# the second kind goes back to the checkpoint before, whose rows are committed: so each row is there once with
# both, and no row is written twice for the sake of the second.
#
# Why no method is called when a checkpoint is aborted. Rows in front of its barrier have left the job for
# good; what was prepared of them is committed with the next checkpoint. A sink that dropped them would lose
# them.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class Sink(ABC):
    """Writes the rows of a job, and makes them visible with its checkpoints: each row once.

    Rows are written as they come. With each checkpoint they are prepared, so that they can be committed and
    are not visible yet; then the checkpoint is written to disk; then they are committed. A job that is killed
    commits what its newest checkpoint has prepared, and makes the other rows anew.

        >>> from pillarbox import run
        >>> from pillarbox.job import Sink
        >>> class Collected(Sink):
        ...     def __init__(self):
        ...         self.rows, self.new = [], []
        ...     def recover(self, prepared):
        ...         return True
        ...     def write(self, rows):
        ...         self.new += rows
        ...     def prepare(self, checkpoint):
        ...         new, self.new = self.new, []
        ...         return new
        ...     def commit(self, prepared):
        ...         for rows in prepared:
        ...             self.rows += rows
        >>> async def double(number):
        ...     return number * 2
        >>> sink = Collected()
        >>> run([1, 2, 3], double, sink, checkpoints="numbers").wait()
        True
        >>> sink.rows
        [2, 4, 6]

    All methods are called on the job's thread, and may block. An error ends the job.
    """

    def open(self, job: str, interval: float) -> None:  # noqa: B027
        """Prepare for rows. The first call, once.

        job: a name that is the same whenever the job starts again, and no other job has. interval: seconds
        from one checkpoint to the next.
        """

    @abstractmethod
    def recover(self, prepared: Sequence[Any]) -> bool:
        """Commit the prepared rows of an earlier life of the job, and discard other rows that it has written.

        prepared: what `prepare` returned, of all that the checkpoint holds; some or all of it may be
        committed already. Returns False if it is lost and was not committed: the job then goes on from the
        checkpoint before, and calls this again. The second call, before any row.
        """

    @abstractmethod
    def write(self, rows: Sequence[Any]) -> None:
        """Write rows, which are not visible before they are committed."""

    def watermark(self, seconds: float) -> None:  # noqa: B027
        """Note that no row of this or an earlier event time follows, in seconds since 1970."""

    @abstractmethod
    def prepare(self, checkpoint: int) -> Any:
        """Make the rows written since the last call durable, and return a value by which `commit` finds them.

        checkpoint: its number, which grows. What is returned goes into the checkpoint, so JSON must hold it.
        None for no rows.
        """

    @abstractmethod
    def commit(self, prepared: Sequence[Any]) -> None:
        """Make prepared rows visible: the checkpoint that holds them is durable.

        prepared: what `prepare` returned, oldest first; several where a checkpoint was aborted.
        """

    def close(self) -> None:  # noqa: B027
        """Release all resources, and discard rows that are not committed. Once, also after an error."""
