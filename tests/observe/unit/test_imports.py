"""The cost of observing for those who do not: neither a client nor the report is imported, nor needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.aio import observe
from pillarbox.aio.observe import exporters, html_report
from pillarbox.aio.totals import Totals

CLIENTS = ("prometheus_client", "opentelemetry", "IPython", "rich", "http.server", "jinja2")


def modules_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def test_importing_it_imports_no_client_and_no_report() -> None:
    loaded = modules_after("import pillarbox.aio.observe.series")
    assert "pillarbox.aio.totals" in loaded
    assert loaded & {*CLIENTS, "pillarbox.aio.observe.html_report"} == set()


def test_every_name_that_it_has_is_there() -> None:
    assert all(getattr(observe, name).__doc__ for name in observe.__all__)
    with pytest.raises(AttributeError, match="no attribute 'reports'"):
        _ = observe.reports


@pytest.mark.contract
@pytest.mark.parametrize(
    ("make", "missing", "extra"),
    [
        (exporters.PrometheusExporter, "prometheus_client", "prometheus"),
        (exporters.OpenTelemetryExporter, "opentelemetry.metrics", "opentelemetry"),
        (html_report.report, "jinja2", "report"),
    ],
)
def test_an_exporter_without_its_client_names_the_extra(
    make: Callable[..., Any], missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"pip install 'pillarbox\[{extra}\]'"):
        make(*[Totals()] * (make is html_report.report))
