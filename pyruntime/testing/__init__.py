"""Tools for tests: clocks, harnesses and suites that check your operators and connectors as ours are checked.

Suites for queues and mailboxes of your own, models, histories and the search for their linearizations are
in the modules of this package. `pillarbox.testing.suites` needs Hypothesis, the extra `testing`. `serve`
starts a stand-in for a service of embeddings, chat and look-ups.
"""

from pillarbox.testing.clocks import FakeClock, VirtualTimeLoop, run_virtual
from pillarbox.testing.harness import OperatorHarness
from pillarbox.testing.source_harness import SourceHarness
from pillarbox.testing.source_suite import source_suite
from pillarbox.testing.stand_in_service import ServiceStatistics, StandInService, serve

__all__ = [
    "FakeClock",
    "OperatorHarness",
    "ServiceStatistics",
    "SourceHarness",
    "StandInService",
    "VirtualTimeLoop",
    "run_virtual",
    "serve",
    "source_suite",
]
