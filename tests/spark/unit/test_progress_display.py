"""The views of a `Progress`: in a terminal, in a log, and in a notebook with a real kernel."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

from pillarbox.aio.observe.series import Point, point
from pillarbox.aio.totals import Totals
from pillarbox.spark import Progress
from pillarbox.spark.progress import LINE_INTERVAL_S, Lines, open_display, recent_rate

SOME = Totals(results=40, in_flight=7, capacity=64, retries=3, errors=2, cost=0.25)


def series(*results: int) -> list[Point]:
    return [point(float(i), Totals(results=count)) for i, count in enumerate(results)]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_gets_a_bar_with_rate_calls_errors_cost_and_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "80")
    shown = Terminal()
    bar = open_display("rows [red]", 100, None, shown)
    bar.show(SOME, series(0, 20, 40))
    bar.close(Totals(results=100, errors=2), series(0, 50, 100))
    last = plain(shown.getvalue())
    for words in (
        "rows [red]",
        "40/100",
        "20 rows/s",
        "7/64 in flight",
        "3 retries",
        "cost 0.25",
        "3 s left",
    ):
        assert words in last
    assert re.search("100/100 50 rows/s +0:00:00", last)
    assert "0 in flight 0 retries 2 errors" in last


def test_a_log_gets_lines_and_the_last_one_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("pillarbox.spark.progress.time.monotonic", lambda: now[0])
    shown = io.StringIO()
    lines = open_display("rows", None, None, shown)
    assert isinstance(lines, Lines)
    lines.show(SOME, series(0, 40))
    assert shown.getvalue() == ""
    now[0] += LINE_INTERVAL_S
    lines.show(SOME, series(0, 40))
    lines.show(SOME, series(0, 40))
    lines.close(Totals(results=100), series(0, 50, 100))
    assert shown.getvalue().splitlines() == [
        "rows: 40 rows, 40 rows/s, 7/64 in flight, 3 retries, 2 errors, cost 0.25",
        "rows: 100 rows, 50 rows/s, 0 in flight, 0 retries, 0 errors",
    ]


def test_a_bar_is_refused_without_rich_and_lines_are_shown_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(open_display("rows", None, None, Terminal()), Lines)
    with pytest.raises(ImportError, match=r"pip install 'pillarbox\[progress\]'"), Progress(bar=True):
        pass


WAIT = "the service is not reached, for 4 s; tried again at 12:00:07 (in 3 s)"


@pytest.mark.contract("A bar shows what is waited for, and the rows that a resumed job found.")
def test_a_bar_shows_what_is_waited_for_and_the_rows_that_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "200")
    shown = Terminal()
    bar = open_display("rows", 100, None, shown)
    bar.show(Totals(results=40, found=30, waits={"a slow row [1]": 1, WAIT: 2}), series(0, 40))
    bar.close(Totals(results=100, found=30), series(0, 100))
    before, after = plain(shown.getvalue()).rsplit("40/100", 1)[1].split("100/100", 1)
    # The wait of most operators; all would not have room.
    assert "30 found" in before and f"waits: {WAIT}" in before and "slow row" not in before
    assert "30 found" in after and "waits" not in after


def test_a_log_gets_a_line_at_once_when_something_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.spark.progress.time.monotonic", lambda: 100.0)
    shown = io.StringIO()
    lines = open_display("rows", None, None, shown)
    for waits in ({}, {WAIT: 1}, {WAIT: 2}, {}, {"a slow row": 1}):
        lines.show(Totals(results=40, waits=waits), series(0, 40))
    assert [line.rpartition("waits: ")[2] for line in shown.getvalue().splitlines()] == [WAIT, "a slow row"]


@pytest.mark.contract("On demand the bar shows the state, requests, faults and time of each endpoint.")
def test_a_bar_shows_each_endpoint_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "120")
    totals = Totals(
        endpoint_calls={"one:80": 3, "[two]:80": 1200},
        endpoint_errors={"one:80": 1},
        endpoint_seconds={"one:80": 1.5, "[two]:80": 12.0},
        endpoint_resting={"one:80": 1, "[two]:80": 0},
    )
    shown = Terminal()
    open_display("rows", None, True, shown, True).close(totals, series(0))
    last = plain(shown.getvalue())
    assert "one:80 rests: 3 requests, 1 faults, 500 ms" in last
    assert "[two]:80 takes calls: 1,200 requests, 0 faults, 10 ms" in last
    lines = io.StringIO()
    open_display("rows", None, False, lines, True).close(totals, series(0))
    assert lines.getvalue().count("\n") == 1 and "; one:80 rests: 3 requests" in lines.getvalue()
    without = io.StringIO()
    open_display("rows", None, False, without).close(totals, series(0))
    assert "one:80" not in without.getvalue()


@pytest.mark.contract(
    "Where endpoints are shown, so is what is left of each limit that is known, as far as it is known."
)
def test_a_bar_shows_what_is_left_of_limits_where_endpoints_are_shown() -> None:
    totals = Totals(
        limits_named={" requests": 60, " tokens": 150_000, "one:80 tokens": 900},
        limits_left={" requests": 7.4, "one:80 tokens": 0},
    )
    lines = io.StringIO()
    open_display("rows", None, False, lines, True).close(totals, series(0))
    shown = lines.getvalue().strip().split("; ")[1:]
    assert shown == [
        "requests: 7 left of 60",
        "tokens: unknown left of 150,000",
        "one:80 tokens: 0 left of 900",
    ]
    without = io.StringIO()
    open_display("rows", None, False, without).close(totals, series(0))
    assert "left of" not in without.getvalue()


def test_the_rate_is_that_of_late_and_never_negative() -> None:
    assert recent_rate([]) == recent_rate(series(5)) == 0.0
    assert recent_rate(series(0, 1000, *range(1000, 1100, 5)), window=10.0) == 5.0
    assert recent_rate([point(0.0, Totals()), point(30.0, Totals(results=30))], window=10.0) == 1.0
    assert recent_rate(series(100, 40)) == 0.0


@pytest.mark.parametrize(("total", "results"), [(None, 40), (100, 0), (30, 40)])
def test_the_time_left_is_said_only_with_a_total_and_a_rate(total: int | None, results: int) -> None:
    shown = io.StringIO()
    display = open_display("rows", total, False, shown)
    assert display.words(Totals(in_flight=1), 6.0, 10.0)[-1] == "10 s left"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pillarbox.spark.progress.time.monotonic", lambda: float("inf"))
        display.show(Totals(in_flight=1, results=results), series(0, results))
    (line,) = shown.getvalue().splitlines()
    assert "left" not in line


# A job whose only task is the cell, so that it needs no Spark.
CELL = """
import threading
from pillarbox.aio.totals import Totals
from pillarbox.spark import Progress
from pillarbox.spark.progress_channel import ProgressReporter

said = Totals()

def done(results):
    global said
    said = Totals(results=results, errors=1, in_flight=7, capacity=64)
    while progress.totals.results != results:
        threading.Event().wait(0.01)

with Progress(total=100, label="<b>rows</b>") as progress:
    task = ProgressReporter(progress.new_operator(), lambda: said)
    done(0)
    looks = len(progress.series)
    while len(progress.series) < looks + 3:
        threading.Event().wait(0.01)
    done(40)
    done(100)
    task.close()
print(progress.totals.results)
"""


@pytest.fixture
def kernel() -> Any:
    """A real Jupyter kernel and its client."""
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client.manager")
    found, client = manager.start_new_kernel(startup_timeout=60)
    yield client
    client.stop_channels()
    found.shutdown_kernel(now=True)


def test_a_notebook_gets_one_output_that_is_replaced(kernel: Any) -> None:
    messages: list[dict[str, Any]] = []
    reply = kernel.execute_interactive(CELL, timeout=60, output_hook=messages.append)
    assert reply["content"]["status"] == "ok", reply["content"]
    kinds = [message["msg_type"] for message in messages]
    assert kinds.count("display_data") == 1
    first = messages[kinds.index("display_data")]["content"]
    updates = [m["content"] for m in messages if m["msg_type"] == "update_display_data"]
    assert {each["transient"]["display_id"] for each in updates} == {first["transient"]["display_id"]}
    pages = [each["data"]["text/html"] for each in updates]
    assert any("40/100 rows" in page and "7/64 in flight" in page for page in pages)
    assert "100/100 rows" in pages[-1] and "value='100.0'" in pages[-1] and "1 errors" in pages[-1]
    assert all("&lt;b&gt;rows&lt;/b&gt;" in page and "<b>rows" not in page for page in pages)
    assert len(pages) == len(set(pages))
    streams = [(m["content"]["name"], m["content"]["text"]) for m in messages if m["msg_type"] == "stream"]
    assert streams == [("stdout", "100\n")]


def test_a_notebook_shows_lines_where_they_were_asked_for(kernel: Any) -> None:
    messages: list[dict[str, Any]] = []
    cell = CELL.replace('label="<b>rows</b>"', 'label="rows", bar=False')
    kernel.execute_interactive(cell, timeout=60, output_hook=messages.append)
    assert [m for m in messages if m["msg_type"] == "display_data"] == []
    errors = [m["content"]["text"] for m in messages if m["msg_type"] == "stream"]
    assert "rows: 100/100 rows" in "".join(errors)
