"""Tools for tests: property suites, recorded histories and their checks, for our kernel and for yours.

`mailbox_suite`, `queue_suite` and `handover_suite` need Hypothesis, the extra `testing`; they are imported
when they are asked for. Everything else is plain Python. Models, histories, schedulers and the inputs and
outputs of tests are in the modules of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pillarbox.testing.clocks import FakeClock, VirtualTimeLoop
from pillarbox.testing.harness import OperatorHarness
from pillarbox.testing.linearizability import linearize
from pillarbox.testing.source_harness import SourceHarness
from pillarbox.testing.source_suite import source_suite

if TYPE_CHECKING:
    from pillarbox.testing.suites.handover import handover_suite
    from pillarbox.testing.suites.mailbox import mailbox_suite
    from pillarbox.testing.suites.queue import queue_suite

__all__ = [
    "FakeClock",
    "OperatorHarness",
    "SourceHarness",
    "VirtualTimeLoop",
    "handover_suite",
    "linearize",
    "mailbox_suite",
    "queue_suite",
    "source_suite",
]

_SUITES = {"handover_suite": "handover", "mailbox_suite": "mailbox", "queue_suite": "queue"}


def __getattr__(name: str) -> Any:
    if name not in _SUITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"pillarbox.testing.suites.{_SUITES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise ModuleNotFoundError(
            f"pillarbox.testing.{name} needs Hypothesis: pip install 'pillarbox[testing]'", name="hypothesis"
        ) from None
