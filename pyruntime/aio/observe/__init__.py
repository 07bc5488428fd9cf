"""Observation of operators, while they run and after: totals, their course over time, exporters, the report.

Nothing here runs on the mailbox thread.
"""

from typing import TYPE_CHECKING

from pillarbox.lazy_names import at_first_use

if TYPE_CHECKING:
    from pillarbox.aio.observe.html_report import report
    from pillarbox.aio.observe.series import Watch

__all__ = ["Watch", "report"]

_MODULES = {"html_report": ["report"], "series": ["Watch"]}

if not TYPE_CHECKING:
    # At the first use: a report needs no exporters.
    __getattr__ = at_first_use(__name__, _MODULES)
