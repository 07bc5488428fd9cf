"""Draws docs/pictures/report.png anew: a report about a real run, seen in a real browser.

    python docs/report_picture.py

Not part of `make docs`: it needs Chromium, and half a minute.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pillarbox import Retry, async_map  # noqa: E402
from pillarbox.aio.observe import Watch, report  # noqa: E402
from tests.observe.browser import Browser  # noqa: E402

WIDTH, HEIGHT = 1120, 1000
ROWS = 40_000


async def call(n: int) -> int:
    """A service of 20 ms in the mean; one call in 1,300 takes half a second, one in 50 is refused."""
    await asyncio.sleep(random.lognormvariate(-4.04, 0.5) if n % 1300 else 0.5)
    if random.random() < 0.02:
        raise ConnectionError
    return n


async def draw(page: Path, target: Path) -> None:
    async with Browser() as browser:
        shown = await browser.open(page.as_uri(), WIDTH, HEIGHT)
        target.write_bytes(await shown.screenshot(whole=False))


def main() -> None:
    random.seed(6)
    retry = Retry(attempts=3, initial=0.05, on=(ConnectionError,))
    results = async_map(range(ROWS), call, capacity=64, retry=retry)
    with results, Watch(results) as watch:
        for _ in results:
            pass
    with tempfile.TemporaryDirectory() as folder:
        page = report(watch, Path(folder) / "report.html", title="40,000 orders")
        asyncio.run(draw(page, ROOT / "docs" / "pictures" / "report.png"))


if __name__ == "__main__":
    main()
