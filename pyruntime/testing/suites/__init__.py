"""The property suites: random operations on a subject, compared step by step with a reference model.

Needs Hypothesis (the extra `testing`). The classes that the suites give run in the thread of the test runner.
"""

from pillarbox.testing.suites.handover import handover_suite
from pillarbox.testing.suites.machine import Disagreement
from pillarbox.testing.suites.mailbox import mailbox_suite
from pillarbox.testing.suites.operator import OperatorMachine
from pillarbox.testing.suites.queue import queue_suite

__all__ = ["Disagreement", "OperatorMachine", "handover_suite", "mailbox_suite", "queue_suite"]
