"""Write the measured figures into README and the documentation, and draw their picture: `make docs` runs it.

    python docs/figures_page.py          # write
    python docs/figures_page.py check    # exit with 1 where a page or the picture differs

The figures are those of `docs/figures.json`, which `make figures` measures. README.md and docs/index.md have
the table that begins with the line `HEAD`, docs/figures.md those that begin with `FULL_HEAD`, one for each
measure, docs/costs.md the one of Spark's worker.
"""

from __future__ import annotations

import functools
import json
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "docs" / "figures.json"
PICTURE = ROOT / "docs" / "pictures" / "figures.svg"
HEAD = "| `make figures` | Pillarbox | others |"
FULL_HEAD = "| {title} | median | lowest and highest round | |"
WIDTH, LABELS, BARS, LINE = 520, 200, 190, 26
OURS, OTHERS, INK = "#c62828", "#a9b4bd", "#222"


@dataclass(frozen=True)
class Measure:
    """A measured quantity: its key in the file, and contenders by the names on the pages, ours first."""

    key: str
    title: str
    unit: str
    contenders: dict[str, str]


MEASURES = (
    Measure(
        "vector",
        "CPU of the client for a vector of 1,024 floats",
        " µs",
        {
            "Pillarbox": "Embeddings, libcurl",
            "baseten's client (Rust)": "baseten-performance-client, base64",
            "AsyncOpenAI": "AsyncOpenAI",
            "Daft embed_text": "Daft embed_text",
        },
    ),
    Measure(
        "question",
        "CPU of the client for a question with a Pydantic answer",
        " µs",
        {
            "Pillarbox": "Chat, libcurl",
            "aiohttp by hand": "a loop: aiohttp, Pydantic",
            "AsyncOpenAI, create": "AsyncOpenAI, create",
            "AsyncOpenAI, parse": "AsyncOpenAI, parse",
        },
    ),
    Measure(
        "killed",
        "Texts paid for twice: 5,000 texts, job killed half way",
        "",
        {
            "Pillarbox with a ledger": "embed_text with a ledger",
            "gather in a pandas UDF": "gather in a pandas UDF",
            "Daft embed_text": "Daft embed_text",
        },
    ),
    Measure(
        "lookup",
        "CPU of the client for a lookup over HTTP",
        " µs",
        {
            "Pillarbox": "HttpLookup, libcurl",
            "Pillarbox, by async_map": "HttpLookup, libcurl, by async_map",
            "aiohttp by hand": "a loop: aiohttp, json",
            "httpx by hand": "a loop: httpx",
        },
    ),
    Measure(
        "spark",
        "CPU of Spark's Python worker for a vector of 1,024 floats",
        " µs",
        {
            "embed_text over HTTP": "embed_text, HTTP",
            "the same, to Parquet": "embed_text, HTTP, to Parquet",
            "the same, with a ledger": "embed_text, HTTP, ledger",
            "no calls: vectors from memory, by hand": "by hand, no calls",
        },
    ),
)
HOME = MEASURES[:3]
"""The measures of the first page, of README and of the picture."""


@functools.cache
def measured() -> dict[str, dict[str, list[float]]]:
    """The rounds of the file, by the keys of measures."""
    found: dict[str, dict[str, list[float]]] = json.loads(MEASURED.read_text())["figures"]
    return found


def rounds(measure: Measure) -> dict[str, list[float]]:
    """The rounds of each contender that was measured."""
    found = measured()[measure.key]
    return {name: found[key] for name, key in measure.contenders.items() if key in found}


def shown(value: float, unit: str) -> str:
    """The text of a figure."""
    return f"{value:.1f}{unit}" if unit and value < 100 else f"{value:,.0f}{unit}"


def home_table() -> str:
    """The table of the first page."""
    lines = [HEAD, "|---|--:|---|"]
    for measure in HOME:
        found = rounds(measure)
        (_, ours), *others = [(name, statistics.median(each)) for name, each in found.items()]
        beside = [
            f"{name} {shown(value, measure.unit)}" + (f" ({value / ours:.1f} x)" if ours else "")
            for name, value in others
        ]
        ours_of_rounds = next(iter(found.values()))
        # A count that differs from round to round is not said by its median alone.
        spread = "" if measure.unit else f" ({min(ours_of_rounds):,} to {max(ours_of_rounds):,})"
        lines.append(f"| {measure.title} | **{shown(ours, measure.unit)}**{spread} | {'; '.join(beside)} |")
    return "\n".join(lines) + "\n"


def full_tables() -> dict[str, str]:
    """The tables of the page of figures, by their first lines."""
    tables = {}
    for measure in MEASURES:
        head = FULL_HEAD.format(title=measure.title)
        lines = [head, "|---|--:|--:|--:|"]
        base = None
        for name, each in rounds(measure).items():
            median = statistics.median(each)
            base = median if base is None else base
            lowest = shown(min(each), measure.unit).removesuffix(measure.unit)
            spread = f"{lowest} to {shown(max(each), measure.unit)}"
            ratio = f"{median / base:.1f} x" if base else ""
            lines.append(f"| {name} | {shown(median, measure.unit)} | {spread} | {ratio} |")
        tables[head] = "\n".join(lines) + "\n"
    return tables


def replaced(page: str, head: str, table: str) -> str:
    """The page with another table in place of the one that begins with `head`. Raises ValueError if none."""
    pattern = re.compile(re.escape(head) + r"\n(?:\|.*\n)+")
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"the page has to have one table that begins with {head!r}")
    return pattern.sub(lambda _: table, page)


def pages() -> dict[Path, str]:
    """The pages with the tables, by their paths."""
    home = home_table()
    written = {
        path: replaced(path.read_text(), HEAD, home)
        for path in (ROOT / "README.md", ROOT / "docs" / "index.md")
    }
    full = (ROOT / "docs" / "figures.md").read_text()
    tables = full_tables()
    for head, table in tables.items():
        full = replaced(full, head, table)
    costs = (ROOT / "docs" / "costs.md").read_text()
    head = next(each for each in tables if "Spark" in each)
    written[ROOT / "docs" / "costs.md"] = replaced(costs, head, tables[head])
    return {**written, ROOT / "docs" / "figures.md": full}


def _text(x: float, y: float, words: str, more: str = "") -> str:
    style = f"font-family='sans-serif' font-size='13' fill='{INK}' {more}"
    return f"<text x='{x:g}' y='{y:g}' {style}>{escape(words)}</text>"


def picture() -> str:
    """Bars of the home's measures, a panel each. A bar far longer than the next one is drawn broken."""
    parts: list[str] = []
    top = 8.0
    for measure in HOME:
        values = {name: statistics.median(each) for name, each in rounds(measure).items()}
        *_, second, longest = sorted(values.values())
        scale = (BARS - 40) / second if longest > 4 * second else BARS / longest
        parts.append(_text(10, top + 16, measure.title, "font-weight='bold'"))
        top += 24
        for number, (name, value) in enumerate(values.items()):
            length = max(min(value * scale, BARS), 1.5)
            colour = OTHERS if number else OURS
            parts.append(_text(10, top + 17, name))
            place = f"x='{LABELS}' y='{top + 4:g}' width='{length:.1f}' height='{LINE - 8}'"
            parts.append(f"<rect {place} fill='{colour}'/>")
            if value * scale > BARS:
                x = LABELS + BARS - 26
                parts.append(
                    f"<path d='M{x},{top + LINE - 2:g} l6,-{LINE - 4} h7 l-6,{LINE - 4} z' fill='#fff'/>"
                )
            ours = next(iter(values.values()))
            ratio = f" ({value / ours:.0f} x)" if number and ours else ""
            parts.append(_text(LABELS + length + 6, top + 17, shown(value, measure.unit) + ratio))
            top += LINE
        top += 14
    size = f"viewBox='0 0 {WIDTH} {top:g}' width='{WIDTH}' height='{top:g}'"
    ground = f"<rect width='{WIDTH}' height='{top:g}' fill='#fff'/>"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{ground}{''.join(parts)}</svg>\n".replace(
        "><", ">\n<"
    )


def main(words: list[str]) -> int:
    """The command. Returns the exit code."""
    written = {**pages(), PICTURE: picture()}
    if words == ["check"]:
        differing = [path for path, text in written.items() if not path.exists() or path.read_text() != text]
        for path in differing:
            print(f"{path.relative_to(ROOT)}: run python docs/figures_page.py")
        return 1 if differing else 0
    for path, text in written.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
