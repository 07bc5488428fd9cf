"""What operators do, seen while they run and after: totals, series, exporters, and the report.

Nothing here runs on the mailbox thread. Exporters and the report are imported when they are asked for: each
worker of Spark imports this package, and needs neither.
"""

from typing import TYPE_CHECKING, Any

from pillarbox.aio.observe.series import Point
from pillarbox.aio.observe.tasks import TaskTotals
from pillarbox.aio.observe.totals import Totals
from pillarbox.aio.observe.watch import Watch

if TYPE_CHECKING:
    from pillarbox.aio.observe.html_report import report
    from pillarbox.aio.observe.open_telemetry import OpenTelemetryExporter
    from pillarbox.aio.observe.prometheus import PrometheusExporter

__all__ = [
    "OpenTelemetryExporter",
    "Point",
    "PrometheusExporter",
    "TaskTotals",
    "Totals",
    "Watch",
    "report",
]

_LATE = {
    "OpenTelemetryExporter": "open_telemetry",
    "PrometheusExporter": "prometheus",
    "report": "html_report",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
