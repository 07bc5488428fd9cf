"""The task: an input, operators and an output, run by a mailbox processor, with timers and checkpoints.

One thread owns all state of a task. Here is what runs on it, and what asks it from elsewhere.
"""

from pillarbox.task.operator import Operator
from pillarbox.task.protocols import InputStatus
from pillarbox.task.stream_task import StreamTask

__all__ = ["InputStatus", "Operator", "StreamTask"]
