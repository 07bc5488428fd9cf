"""Tools for tests: property suites, recorded histories and their checks, for our kernel and for yours.

`OperatorMachine`, `mailbox_suite`, `queue_suite` and `handover_suite` need Hypothesis, the extra `testing`;
they are imported when they are asked for. Everything else is plain Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pillarbox.testing.axioms import Violation, handover_violations, mailbox_violations
from pillarbox.testing.clocks import FakeClock, VirtualTimeLoop
from pillarbox.testing.harness import OperatorHarness
from pillarbox.testing.history import Event, Recorder, numbered_handles
from pillarbox.testing.linearizability import Verdict, follows, linearize
from pillarbox.testing.models import (
    BLOCKED,
    HandoverModel,
    MailboxModel,
    OrderedModel,
    Raised,
    UnorderedModel,
)
from pillarbox.testing.scheduler import Deadlock, ScheduleFailed, SeededScheduler, explore
from pillarbox.testing.search_hints import mailbox_hints
from pillarbox.testing.source_harness import SourceHarness
from pillarbox.testing.source_suite import ContractBroken, SourceSuite, source_suite
from pillarbox.testing.test_io import CollectedOutput, PushedInput, ReplayedInput, RestingOutput

if TYPE_CHECKING:
    from pillarbox.testing.suites import (
        Disagreement,
        OperatorMachine,
        handover_suite,
        mailbox_suite,
        queue_suite,
    )

__all__ = [
    "BLOCKED",
    "CollectedOutput",
    "ContractBroken",
    "Deadlock",
    "Disagreement",
    "Event",
    "FakeClock",
    "HandoverModel",
    "MailboxModel",
    "OperatorHarness",
    "OperatorMachine",
    "OrderedModel",
    "PushedInput",
    "Raised",
    "Recorder",
    "ReplayedInput",
    "RestingOutput",
    "ScheduleFailed",
    "SeededScheduler",
    "SourceHarness",
    "SourceSuite",
    "UnorderedModel",
    "Verdict",
    "Violation",
    "VirtualTimeLoop",
    "explore",
    "follows",
    "handover_suite",
    "handover_violations",
    "linearize",
    "mailbox_hints",
    "mailbox_suite",
    "mailbox_violations",
    "numbered_handles",
    "queue_suite",
    "source_suite",
]

_NEED_HYPOTHESIS = frozenset(
    {"Disagreement", "OperatorMachine", "handover_suite", "mailbox_suite", "queue_suite"}
)


def __getattr__(name: str) -> Any:
    if name not in _NEED_HYPOTHESIS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pillarbox.testing import suites
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise ModuleNotFoundError(
            f"pillarbox.testing.{name} needs Hypothesis: pip install 'pillarbox[testing]'", name="hypothesis"
        ) from None
    return getattr(suites, name)
