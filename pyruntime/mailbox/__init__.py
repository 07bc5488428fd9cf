"""The event loop of one task: a mailbox, the loop that empties it, and the ways to reach that loop.

One thread, the mailbox thread, owns all state of a task. Everything else reaches it as mail. The
model is Flink's (FLINK-12477), carried over to Python.
"""

from pillarbox.mailbox.action_executor import (
    IMMEDIATE,
    ImmediateActionExecutor,
    SynchronizedActionExecutor,
    TaskActionExecutor,
)
from pillarbox.mailbox.default_action import Controller, DefaultAction, Suspension
from pillarbox.mailbox.executor import MailboxExecutor
from pillarbox.mailbox.guest import GuestDriver
from pillarbox.mailbox.histogram import LatencySnapshot
from pillarbox.mailbox.metrics import MailboxMetrics, MetricsSnapshot
from pillarbox.mailbox.processor import MailboxProcessor, ProcessorStatistics

__all__ = [
    "IMMEDIATE",
    "Controller",
    "DefaultAction",
    "GuestDriver",
    "ImmediateActionExecutor",
    "LatencySnapshot",
    "MailboxExecutor",
    "MailboxMetrics",
    "MailboxProcessor",
    "MetricsSnapshot",
    "ProcessorStatistics",
    "Suspension",
    "SynchronizedActionExecutor",
    "TaskActionExecutor",
]
