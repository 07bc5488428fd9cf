"""The report in a real browser: drawn, whole, readable, quiet, and safe whatever users call their errors."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pillarbox import Retry, async_map
from pillarbox.aio.observe import Watch, report
from pillarbox.aio.observe.series import Series
from pillarbox.aio.totals import SPENT, TaskTotals, Totals
from pillarbox.mailbox.metrics import LatencyHistogram
from tests.observe.browser import Browser, Page

EVIL = "</title><script>window.planted = 1</script><img src=x onerror='window.planted=2'>\"'&"

# What is wrong with the page as it is shown, as a list of texts. `tip` shows only on hover.
FAULTS = """
(() => {
  const found = [];
  const shown = element => element.getClientRects().length > 0 && !element.closest('.tip');
  const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 &&
    a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) found.push(`page ${root.scrollWidth} > ${root.clientWidth}`);
  for (const svg of [...document.querySelectorAll('svg')].filter(shown)) {
    const place = svg.getBoundingClientRect();
    const name = svg.getAttribute('aria-label');
    if (place.width < 250 || place.height < 100) found.push(`${name} is ${place.width} x ${place.height}`);
    const marks = [...svg.querySelectorAll('path, rect:not(.hit)')].filter(shown);
    if (!marks.some(mark => mark.getBoundingClientRect().width > 3)) found.push(`${name} is empty`);
    for (const mark of marks) {
      if (/NaN|Infinity/.test(mark.outerHTML)) found.push(`${name}: ${mark.outerHTML}`);
      if (!inside(mark.getBoundingClientRect(), place)) found.push(`${name}: a mark is cut off`);
    }
    const texts = [...svg.querySelectorAll('text')].filter(shown);
    if (texts.length < 3) found.push(`${name} has no labels`);
    const places = texts.map(text => text.getBoundingClientRect());
    places.forEach((a, i) => {
      if (!inside(a, place)) found.push(`${name}: "${texts[i].textContent}" is cut off`);
      places.slice(i + 1).forEach((b, j) => {
        if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom - 2 && b.top + 2 < a.bottom - 2)
          found.push(`${name}: "${texts[i].textContent}" overlaps "${texts[i + 1 + j].textContent}"`);
      });
    });
  }
  for (const element of document.querySelectorAll('h1, h2, p, .tile b, .tile span, .keys li, td.name')) {
    if (!shown(element)) continue;
    if (element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display !== 'inline')
      found.push(`"${element.textContent}" is cut off`);
  }
  return found;
})()
"""

# The least contrast between a text and what is behind it, as WCAG 2 defines it.
CONTRAST = """
(() => {
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
      .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') return colour;
    }
  };
  let least = 99;
  for (const element of document.querySelectorAll('h1, p, b, td, th, span, li, summary, svg text')) {
    if (!element.textContent.trim() || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const a = light(element instanceof SVGElement ? style.fill : style.color);
    const b = light(behind(element));
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return [least, light(getComputedStyle(document.body).backgroundColor)];
})()
"""

TIPS = """
[...document.querySelectorAll('.tip')].filter(tip => getComputedStyle(tip).visibility === 'visible')
  .map(tip => {
    const place = tip.getBoundingClientRect(), whole = tip.parentElement.getBoundingClientRect();
    return [tip.textContent, place.left >= whole.left - 1 && place.right <= whole.right + 1];
  })
"""


EVIL_ERROR = type(EVIL, (KeyError,), {})


class Source:
    """A report that a test asks for."""

    def __init__(self, totals: Totals, series: Series | None = None, tasks: list[Any] | None = None) -> None:
        self.totals = totals
        self.series = [] if series is None else series.points()
        self.tasks = [] if tasks is None else tasks


def histogram(draw: Callable[[], float], count: int) -> LatencyHistogram:
    found = LatencyHistogram()
    for _ in range(count):
        found.record(draw())
    return found


def large() -> Source:
    """A long job of many tasks with large numbers, everything that may be there, and long names."""
    random.seed(7)
    series, calls, rows = Series(), LatencyHistogram(), LatencyHistogram()
    done, totals = 0, Totals()
    for second in range(0, 40_000, 40):
        done += random.randrange(2_000_000)
        for _ in range(5):
            calls.record(random.lognormvariate(-4, 1))
            rows.record(random.lognormvariate(-3, 1.5))
        totals = Totals(
            rows_in=done + 10**6,
            results=done,
            calls=done * 2,
            retries=done,
            errors=done // 3,
            in_flight=random.randrange(100_000),
            capacity=100_000,
            finished_waiting=random.randrange(10**6),
            held_bytes=3 * 2**30,
            tokens=done * 1000.0,
            cost=done * 0.0137,
            elapsed=second * 100.0,
            retries_by_reason={f"{'Very' * 20}LongNamedError{i}": 10**9 >> i for i in range(30)},
            errors_by_type={EVIL: 10**12, "x" * 300: 5, "\ud800\x00": 1},
            spent={name: second * (i + 1.0) for i, name in enumerate(SPENT)},
            latency=calls.snapshot(),
            call_latency=rows.snapshot(),
        )
        series.add(float(second), totals)
    tasks = [
        TaskTotals(i % 3, 123456, i, 1 + i % 4, i == 7, Totals(results=10**9, elapsed=1000.0 + i))
        for i in range(300)
    ]
    return Source(totals, series, tasks)


def short() -> Source:
    """A job of which one look was had, with one call, of no time at all."""
    series = Series()
    series.add(0.0, Totals())
    one = Totals(rows_in=1, results=1, calls=1, latency=histogram(lambda: 0.0, 1).snapshot())
    series.add(0.001, one)
    return Source(one, series)


def strange() -> Source:
    """Costs that are not numbers, rows that went back, capacities that came late."""
    series = Series()
    for look in range(50):
        some = Totals(
            results=max(100 - look * 10, 0),
            capacity=look // 40,
            cost=float("nan"),
            latency=histogram(lambda: 1e5, look + 1).snapshot(),
            spent={"calls": 50.0 - look},
        )
        series.add(look * 0.25, some)
    return Source(some, series)


def real() -> Watch:
    """A real operator."""

    async def call(n: int) -> int:
        await asyncio.sleep(0.002)
        if n % 30 == 1:
            raise ConnectionError
        if n % 100 == 2:
            raise EVIL_ERROR
        return n

    retry = Retry(attempts=2, initial=0.001, on=(ConnectionError,))
    results = async_map(range(3000), call, capacity=16, errors="null", retry=retry)
    with results, Watch(results, interval=0.02) as watch:
        assert len(list(results)) == 3000
    return watch


SOURCES = {"large": large, "short": short, "strange": strange, "real": real, "nothing": lambda: Totals()}


@pytest.mark.server
@pytest.mark.parametrize("name", SOURCES)
def test_nothing_is_cut_off_or_on_top_of_another_and_nothing_is_asked_for(name: str, tmp_path: Path) -> None:
    path = report(SOURCES[name](), tmp_path / "report.html", title=EVIL, rate=1234.5)

    async def look() -> None:
        async with Browser() as browser:
            for width, dark in ((1200, False), (720, False), (400, True)):
                page = await browser.open(path.as_uri(), width, 900, dark=dark)
                await page.evaluate("document.querySelector('details').open = true")
                assert await page.evaluate(FAULTS) == [], (width, dark)
                contrast, background = await page.evaluate(CONTRAST)
                assert contrast >= 4.5
                assert background < 0.05 if dark else background > 0.7
                charts = await page.evaluate(
                    "[...document.querySelectorAll('svg')].filter(svg => svg.getClientRects().length).length"
                )
                assert charts >= (0 if name == "nothing" else 3)
                await check_quiet(page, path)

    asyncio.run(look())


async def check_quiet(page: Page, path: Path) -> None:
    assert await page.evaluate("typeof window.planted") == "undefined"
    assert await page.evaluate("document.title") == EVIL
    assert await page.evaluate("document.querySelector('h1').textContent") == EVIL
    assert await page.evaluate("document.querySelectorAll('script, img, link, iframe').length") == 0
    assert page.errors == []
    assert page.requests == [path.as_uri()]


@pytest.mark.server
def test_what_is_below_the_pointer_is_said_and_within_the_chart(tmp_path: Path) -> None:
    path = report(large(), tmp_path / "report.html")

    async def look() -> None:
        async with Browser() as browser:
            for width in (1200, 400):
                page = await browser.open(path.as_uri(), width, 900)
                assert await page.evaluate(TIPS) == []
                for share in (0.16, 0.5, 0.95):
                    x, y = await page.evaluate(
                        "(() => { const svg = [...document.querySelectorAll('svg')]"
                        ".find(svg => svg.getClientRects().length); svg.scrollIntoView({block: 'center'});"
                        "const place = svg.getBoundingClientRect();"
                        f"return [place.left + place.width * {share}, place.top + place.height / 2]; }})()"
                    )
                    await page.move_pointer(x, y)
                    await page.evaluate("new Promise(done => requestAnimationFrame(() => done(0)))")
                    ((said, within),) = await page.evaluate(TIPS)
                    assert "rows/s" in said and "slots allow" in said
                    assert within

    asyncio.run(look())


@pytest.mark.contract("The numbers of a report are those of the totals.")
def test_the_numbers_on_the_page_are_those_of_the_totals(tmp_path: Path) -> None:
    watch = real()
    totals = watch.totals
    text = report(watch, tmp_path / "report.html").read_text()
    page = ElementTree.fromstring(text.removeprefix("<!doctype html>"))
    said = {}
    for tile in page.iterfind(".//div[@class='tiles']/div"):
        number, name = ("".join(part.itertext()) for part in tile)
        said[name] = number
    for row in page.iterfind(".//section[@class='bad']//tr"):
        name, number = ("".join(cell.itertext()) for cell in [*row][:2])
        said[name] = number
    assert (said["rows"], said["retries"]) == ("3,000", f"{totals.retries:,}")
    assert said["errors"] == f"{totals.errors:,}"
    assert said[EVIL] == "30"
    busy = totals.spent["calls"] / sum(totals.spent.values())
    assert said["slots busy"] == f"{busy:.0%}"


@pytest.mark.contract("A report has a table of the endpoints, and none where there are none.")
def test_the_endpoints_are_a_table(tmp_path: Path) -> None:
    totals = Totals(
        endpoint_calls={"one:80": 3, "[::1]:81": 1, "http://two/v1": 2},
        endpoint_errors={"one:80": 1},
        endpoint_seconds={"one:80": 1.5},
        endpoint_resting={"one:80": 1, "[::1]:81": 0},
    )
    text = report(totals, tmp_path / "report.html").read_text()
    page = ElementTree.fromstring(text.removeprefix("<!doctype html>"))
    (section,) = [each for each in page.iterfind(".//section") if each.findtext("h2") == "Endpoints"]
    rows = [["".join(cell.itertext()) for cell in row] for row in section.iterfind(".//tbody/tr")]
    assert rows[0] == ["one:80", "3", "1", "500 ms", "rests"]
    assert rows[2] == ["[::1]:81", "1", "0", "0 s", "takes calls"]
    assert "Endpoints" not in report(Totals(), tmp_path / "report.html").read_text()


@pytest.mark.contract("A report has a table of the limits that the service has named.")
def test_the_limits_are_a_table(tmp_path: Path) -> None:
    totals = Totals(
        limits_named={"one:80 tokens": 90000, "one:80 requests": 60, " requests": 30},
        limits_left={"one:80 requests": 7.4, " requests": 30},
    )
    text = report(totals, tmp_path / "report.html").read_text()
    page = ElementTree.fromstring(text.removeprefix("<!doctype html>"))
    (section,) = [
        each for each in page.iterfind(".//section") if each.findtext("h2") == "Limits of the service"
    ]
    rows = [["".join(cell.itertext()) for cell in row] for row in section.iterfind(".//tbody/tr")]
    assert rows == [
        ["all", "requests", "30", "30"],
        ["one:80", "requests", "60", "7"],
        ["one:80", "tokens", "90,000", "unknown"],
    ]
    assert "Limits of the service" not in report(Totals(), tmp_path / "report.html").read_text()


@pytest.mark.contract(needs="a browser, which refuses the script")
@pytest.mark.server
def test_a_script_would_not_run_even_if_it_stood_in_the_page(tmp_path: Path) -> None:
    path = report(Totals(), tmp_path / "report.html")
    whole = path.read_text()
    path.write_text(whole.replace("</main>", "<script>window.planted = 1</script></main>"))

    async def look() -> Any:
        async with Browser() as browser:
            page = await browser.open(path.as_uri(), 800, 600)
            return await page.evaluate("[typeof window.planted, document.querySelectorAll('script').length]")

    assert asyncio.run(look()) == ["undefined", 1]


def test_the_report_replaces_a_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    assert report(Totals(results=7), path) == path
    assert list(tmp_path.iterdir()) == [path]
    assert re.search(r"<b>7</b><span>rows</span>", path.read_text())


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="source=7"):
        report(7, tmp_path / "x.html")
    with pytest.raises(TypeError, match="title=7: must be a text"):
        report(Totals(), tmp_path / "x.html", title=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rate=0"):
        report(Totals(), tmp_path / "x.html", rate=0)
    with pytest.raises(FileNotFoundError):
        report(Totals(), tmp_path / "missing" / "x.html")
    assert list(tmp_path.iterdir()) == []
