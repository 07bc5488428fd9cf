"""Observation of operators, while they run and after: totals, their course over time, exporters, the report.

Nothing here runs on the mailbox thread.
"""

# Each name is imported when it is asked for: a report needs no exporters.

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pillarbox.aio.observe.html_report import report
    from pillarbox.aio.observe.series import Watch

_MODULES = {
    "Watch": "series",
    "report": "html_report",
}

__all__ = ["Watch", "report"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
