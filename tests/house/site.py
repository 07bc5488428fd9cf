"""The documentation's site for tests: its menu, the headings of its pages, and a build of it.

Any thread. Needs the packages that `make docs` needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.commands import build as building
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
SNIPPET = re.compile(r'\A--8<-- "(.+)"$', re.MULTILINE)
FIRST_RESULTS = 4
"""Results of a search that a reader looks at."""
SEARCHES = {
    "concurrency": "limits/",
    "parallel": "spark/",
    "databricks": "clusters/",
    "polars": "from-gather/",
    "gather": "from-gather/",
    "troubleshoot": "my-job-hangs/",
    "hangs": "my-job-hangs/",
    "cost": "costs/",
}
"""A word that a reader types, and the page that is to be among the first results."""


def settings(folder: Path) -> Any:
    """The site's configuration, without the plugin that reads docstrings: menu and pages do not need it."""
    return load_config(str(ROOT / "mkdocs.yml"), plugins=["search"], site_dir=str(folder), strict=False)


def build(folder: Path) -> None:
    """Build the site into `folder`."""
    config = settings(folder)
    config.plugins.on_startup(command="build", dirty=False)
    building.build(config)


def entries(nav: list[Any]) -> Iterator[tuple[str | None, str]]:
    """The pages of a menu, each with the title that the menu gives it; None where it gives none."""
    for item in nav:
        if isinstance(item, str):
            yield None, item
        else:
            for title, below in item.items():
                if isinstance(below, str):
                    yield title, below
                else:
                    yield from entries(below)


def menu() -> list[str]:
    """The pages of the menu, in its order."""
    return [page for _, page in entries(settings(ROOT / "site").nav)]


def pages() -> set[str]:
    """All pages, by their paths in `docs`; a notebook is a page too. Fragments of the changelog are none."""
    written = {path for path in DOCS.rglob("*.md") if path.parent.name != "news"}
    notebooks = {path.with_suffix(".md") for path in DOCS.rglob("*.ipynb")}
    return {path.relative_to(DOCS).as_posix() for path in written | notebooks}


def text(page: str) -> str:
    """The text of a page, of the file that it includes, or of the notebook that it is made of."""
    path = DOCS / page
    if not path.exists():
        cells = json.loads(path.with_suffix(".ipynb").read_text())["cells"]
        parts = [("".join(each["source"]), each["cell_type"]) for each in cells]
        return "\n\n".join(f"```python\n{part}\n```" if kind == "code" else part for part, kind in parts)
    found = path.read_text()
    included = SNIPPET.match(found)
    return found if included is None else (ROOT / included[1]).read_text()


def heading(page: str) -> str | None:
    """The first heading of a page."""
    found = HEADING.search(text(page))
    return found and found[1]


def address(page: str) -> str:
    """The address of a page, relative to that of the site."""
    path = page.removesuffix(".md").removesuffix("index")
    return path if path == "" or path.endswith("/") else f"{path}/"
