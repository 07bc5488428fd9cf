"""The documentation's site in a real browser, as wide as a desk's screen and as narrow as a telephone's."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("material", reason="the package mkdocs-material is not installed")
pytest.importorskip("nbconvert", reason="the package nbconvert is not installed")

from tests.house import site
from tests.observe.browser import Browser, Page

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

WIDE, NARROW = 1280, 400
HEIGHT = 900
TOO_WIDE = """(() => {
    const root = document.documentElement;
    return root.scrollWidth > root.clientWidth ? [root.scrollWidth, root.clientWidth] : null;
})()"""
"""The widths of a page that scrolls sideways, and of the window; null for any other page."""
HEADING_AND_ENTRY = """(() => {
    const heading = document.querySelector('article h1').cloneNode(true);
    heading.querySelectorAll('.headerlink').forEach(each => each.remove());
    const entry = document.querySelector('.md-nav--primary a.md-nav__link--active');
    return [heading, entry].map(each => each && each.textContent.trim().replace(/\\s+/g, ' '));
})()"""
"""The heading of a page, and its entry in the menu; null without one."""
FOUND = """new Promise(done => {
    const list = document.querySelector('.md-search-result__list');
    const look = () => {
        const links = [...list.querySelectorAll(':scope > li > a, :scope > li > article > a')];
        if (links.length) done(links.map(link => new URL(link.href).pathname));
    };
    new MutationObserver(look).observe(list, {childList: true});
    look();
})"""
"""The pages that a search has found, the best first."""

Served = Callable[[Callable[[Browser, str], Coroutine[Any, Any, None]]], None]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    site.build(folder)
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@asynccontextmanager
async def opened(url: str, width: int) -> AsyncIterator[Page]:
    async with Browser() as browser:
        yield await browser.open(url, width, HEIGHT)


async def go(page: Page, url: str) -> None:
    await page.call("Page.navigate", url=url)
    await page.wait_for("Page.loadEventFired")


@pytest.mark.timeout(600)
def test_each_page_fits_a_telephone_has_its_heading_in_the_menu_and_asks_for_nothing_elsewhere(
    address: str,
) -> None:
    faults = {}

    async def look() -> None:
        async with opened(address, WIDE) as page:
            for name in site.menu():
                await page.resize(WIDE, HEIGHT)
                await go(page, address + site.address(name))
                heading, entry = await page.evaluate(HEADING_AND_ENTRY)
                widths = [await page.evaluate(TOO_WIDE)]
                await page.resize(NARROW, HEIGHT)
                widths.append(await page.evaluate(TOO_WIDE))
                if heading != entry or widths != [None, None]:
                    faults[name] = heading, entry, widths
            assert page.errors == []
            assert [url for url in page.requests if not url.startswith((address, "data:"))] == []

    asyncio.run(look())
    assert faults == {}


def test_the_search_finds_the_page_that_a_reader_looks_for_in_a_browser(address: str) -> None:
    async def look() -> None:
        places = {}
        async with opened(address, WIDE) as page:
            for word, wanted in site.SEARCHES.items():
                await go(page, f"{address}?q={word}")
                found = [path.lstrip("/") for path in await page.evaluate(FOUND)]
                places[word] = found.index(wanted) if wanted in found else None
        late = {word: place for word, place in places.items() if place is None or place >= site.FIRST_RESULTS}
        assert late == {}, json.dumps(places)

    asyncio.run(look())
