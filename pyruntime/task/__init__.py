"""The task: an input, operators and an output, run by a mailbox processor, with timers and checkpoints.

One thread owns all state of a task. Here is what runs on it, and what asks it from elsewhere.
"""

from pillarbox.task.chain import OperatorChain
from pillarbox.task.checkpoint import (
    CheckpointBarrier,
    CheckpointDeclined,
    CheckpointOptions,
    CheckpointResponder,
    OperatorSnapshot,
    SnapshotStorage,
    StopAborted,
    TaskSnapshot,
)
from pillarbox.task.fair_lock import FairLock
from pillarbox.task.legacy import (
    CheckpointedSource,
    InputFormat,
    InputStatistics,
    ParallelSourceFunction,
    ReplicatingInputFormat,
    RichInputFormat,
    RuntimeContext,
    SourceCancelled,
    SourceContext,
    SourceFunction,
)
from pillarbox.task.operator import Operator, OperatorContext
from pillarbox.task.protocols import (
    MAX_WATERMARK,
    Idleness,
    InputStatus,
    LatencyMarker,
    OperatorOutput,
    RowBatch,
    StatefulInput,
    TaskCancelled,
    TaskInput,
    TaskOutput,
    TaskState,
    Watermark,
)
from pillarbox.task.stream_task import StreamTask
from pillarbox.task.timers import ProcessingTimeService, Timer

__all__ = [
    "MAX_WATERMARK",
    "CheckpointBarrier",
    "CheckpointDeclined",
    "CheckpointOptions",
    "CheckpointResponder",
    "CheckpointedSource",
    "FairLock",
    "Idleness",
    "InputFormat",
    "InputStatistics",
    "InputStatus",
    "LatencyMarker",
    "Operator",
    "OperatorChain",
    "OperatorContext",
    "OperatorOutput",
    "OperatorSnapshot",
    "ParallelSourceFunction",
    "ProcessingTimeService",
    "ReplicatingInputFormat",
    "RichInputFormat",
    "RowBatch",
    "RuntimeContext",
    "SnapshotStorage",
    "SourceCancelled",
    "SourceContext",
    "SourceFunction",
    "StatefulInput",
    "StopAborted",
    "StreamTask",
    "TaskCancelled",
    "TaskInput",
    "TaskOutput",
    "TaskSnapshot",
    "TaskState",
    "Timer",
    "Watermark",
]
