"""A batch under way: the rows that one call has. Confined to the mailbox thread."""

from __future__ import annotations

import math

from pillarbox.aio.calls import EXECUTION, Call
from pillarbox.aio.executions import Execution


class BatchExecution(Execution):
    """Rows that are called together, once; when they are called again, that is another one.

    Each of `calls` whose `execution` is this one is still waited for, `left` of them. `timer` is of the
    pause before its call, then of its abandonment. `is_part`: they are a part of rows that failed together;
    its call looks for the poison row, and is not an attempt of the others. `is_suspect`: one of their calls,
    with the same rows, failed so that one of them may be a poison row. The last call alone does not tell,
    where errors that pass come between.
    """

    __slots__ = ("calls", "deadline", "is_part", "is_suspect", "left", "started")

    def __init__(self, calls: list[Call], is_part: bool = False, is_suspect: bool = False) -> None:
        super().__init__()
        self.calls = calls
        self.is_part = is_part
        self.is_suspect = is_suspect
        self.left = len(calls)
        self.deadline = -1
        self.started = False

    def waited_for(self) -> list[Call]:
        """Those of its calls that wait for it."""
        calls = self.calls
        if EXECUTION.holds(calls, self):
            return calls[:]
        return [call for call in calls if call.execution is self]

    def began(self) -> float:
        """See `Execution.began`."""
        # A hedge that is not needed any more has no rows.
        return self.calls[0].began if self.started and self.calls else math.inf

    def release(self, call: Call) -> bool:
        """Take away `call`; the others go on."""
        self.left -= 1
        return not self.left

    def release_all(self) -> None:
        """Take away all calls: no answer of theirs counts."""
        self.left = 0
