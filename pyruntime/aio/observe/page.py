"""The frame of the report: its style, tiles, tables and sections. Functions without state.

The page runs no script and loads nothing: its own policy forbids both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pillarbox.aio.observe.markup import Child, Markup, join, tag
from pillarbox.aio.observe.words import number

WIDE, NARROW = 1040.0, 352.0
"""Pixels of the two drawings of each chart; the page shows the one that fits."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --panel: #ffffff; --ink: #1b2430; --soft: #5a6573; --line: #e2e6eb;
  --blue: #2c6cb4; --wash: #2c6cb426; --limit: #b4471f; --rate: #7d4fb0; --bad: #b3372f;
  --calls: #2c6cb4; --input: #b4bcc7; --order: #e39a2d; --output: #8b68b5; --held: #c8524a;
  --retry: #d8bd3f; --ledger: #3f9484; --end: #6d7886; --loop: #a3563c; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161c; --panel: #1a2028; --ink: #e4e8ee; --soft: #9aa5b3; --line: #2d3540;
  --blue: #6ba7e8; --wash: #6ba7e82e; --limit: #ee9365; --rate: #bf9bea; --bad: #f0857c;
  --calls: #5b99dd; --input: #566170; --order: #dd9a3e; --output: #a283cc; --held: #d96a61;
  --retry: #cfb64a; --ledger: #5fb0a0; --end: #8793a3; --loop: #c9805f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.45;
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 16px 48px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0 0 10px; } .soft { color: var(--soft); } header p { margin: 2px 0 18px; }
section, .tile { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; }
section { padding: 16px 20px; margin-top: 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr)); gap: 12px; }
.tile { padding: 10px 12px; }
.tile b { display: block; font-size: 20px; font-weight: 600; white-space: nowrap; }
.tile b.long { font-size: 14px; line-height: 29px; }
.tile span { color: var(--soft); font-size: 13px; } .tile.bad b { color: var(--bad); }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 0 16px; }
svg { display: block; width: 100%; height: auto; overflow: hidden; margin-top: 6px; }
svg text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
svg text.strong { fill: var(--ink); font-weight: 600; } .narrow { display: none; }
.grid { stroke: var(--line); } .base { stroke: var(--soft); }
.area { fill: var(--wash); } .rows { fill: none; stroke: var(--blue); stroke-width: 2; }
.limit { fill: none; stroke: var(--limit); stroke-width: 1.5; stroke-dasharray: 5 4; }
.rate { stroke: var(--rate); stroke-width: 1.5; stroke-dasharray: 1 4; stroke-linecap: round; }
.quantile { stroke: var(--ink); stroke-dasharray: 2 3; } .bar { fill: var(--blue); }
.s-calls { fill: var(--calls); background: var(--calls); }
.s-input { fill: var(--input); background: var(--input); }
.s-order { fill: var(--order); background: var(--order); }
.s-output { fill: var(--output); background: var(--output); }
.s-rate { fill: var(--held); background: var(--held); }
.s-retry { fill: var(--retry); background: var(--retry); }
.s-ledger { fill: var(--ledger); background: var(--ledger); }
.s-loop { fill: var(--loop); background: var(--loop); }
.s-end { fill: var(--end); background: var(--end); }
.hit { fill: transparent; } .tip { visibility: hidden; pointer-events: none; }
.hit:hover + .tip { visibility: visible; } .tip rect { fill: var(--panel); stroke: var(--soft); }
.tip text { fill: var(--ink); } .rule { stroke: var(--soft); }
.keys { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0 0; padding: 0; list-style: none;
  color: var(--soft); font-size: 13px; }
.keys i { display: inline-block; width: 18px; margin-right: 6px; vertical-align: middle; }
.keys i { border-top: 2px solid var(--blue); }
.keys i.k-limit { border-color: var(--limit); border-top-style: dashed; }
.keys i.k-rate { border-color: var(--rate); border-top-style: dotted; }
.stack { display: flex; height: 26px; gap: 2px; border-radius: 5px; overflow: hidden; margin: 8px 0 4px; }
.stack div { min-width: 1px; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } th { font-weight: 500; color: var(--soft); text-align: left; }
th, td { padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: baseline; }
td.n, th.n { text-align: right; white-space: nowrap; } td.name { overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; } .share { min-width: 60px; width: 30%; }
.share div { height: 9px; border-radius: 2px; background: var(--blue); min-width: 1px; }
.bad .share div { background: var(--bad); }
details { margin-top: 6px; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
svg rect { shape-rendering: crispEdges; } .stacked td:first-child { white-space: nowrap; }
@media (max-width: 719px) { table { font-size: 12.5px; } th, td { padding-right: 6px; }
  .wide { display: none; } .narrow { display: block; max-width: 560px; }
  .two { grid-template-columns: 1fr; } section { padding: 14px 12px; } main { padding: 18px 10px 36px; }
  .tiles { grid-template-columns: repeat(auto-fit, minmax(104px, 1fr)); } }
@media print { .tip { display: none; } section { break-inside: avoid; } }
"""


def document(title: str, body: Sequence[Child]) -> str:
    """The whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>'),
        tag("title", title),
        Markup(f"<style>{STYLE}</style>"),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *body)), lang='en')}\n"


def section(name: str, said: str | None, *children: Child) -> Markup:
    """A part of the page with a heading and a sentence."""
    return tag("section", tag("h2", name), said and tag("p", said, class_="soft"), *children)


def chart(draw: Callable[[float], Markup]) -> list[Markup]:
    """A chart for wide and for narrow windows."""
    return [
        tag("div", draw(WIDE), class_="chart wide"),
        tag("div", draw(NARROW), class_="chart narrow"),
    ]


def tile(name: str, value: str, *, bad: bool = False) -> Markup:
    """A number that counts."""
    size = "long" if len(value) > 8 else None
    return tag("div", tag("b", value, class_=size), tag("span", name), class_="tile bad" if bad else "tile")


def keys(*names: tuple[str, str]) -> Markup:
    """What the lines of a chart are: pairs of a class and a name."""
    return tag("ul", [tag("li", tag("i", class_=f"k-{kind}"), name) for kind, name in names], class_="keys")


MOST_LINES = 12
LONG = 100


def tally(name: str, counts: Mapping[str, int], *, bad: bool = False) -> Markup:
    """A table of counts by a key, the most frequent first, with bars."""
    some = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = some[:MOST_LINES]
    if len(some) > MOST_LINES:
        shown.append((f"{len(some) - MOST_LINES} others", sum(count for _, count in some[MOST_LINES:])))
    most = max((count for _, count in shown), default=1) or 1
    lines = [
        tag(
            "tr",
            tag("td", key if len(key) <= LONG else f"{key[: LONG - 1]}…", class_="name"),
            tag("td", number(count), class_="n"),
            tag("td", tag("div", style=f"width:{count / most:.1%}"), class_="share", aria_hidden="true"),
        )
        for key, count in shown
    ]
    body = tag("table", tag("tbody", lines)) if lines else tag("p", "None.", class_="soft")
    return tag("section", tag("h2", name), body, class_="bad" if bad else None)


def table(columns: Sequence[str], lines: Sequence[Sequence[Child]], *, text_columns: int = 1) -> Markup:
    """A table: the first columns are text, the others numbers."""

    def kind(place: int) -> str | None:
        return None if place < text_columns else "n"

    head = tag("tr", [tag("th", name, class_=kind(place), scope="col") for place, name in enumerate(columns)])
    body = [
        tag("tr", [tag("td", value, class_=kind(place)) for place, value in enumerate(line)])
        for line in lines
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="scroll", tabindex="0")


def stack(shares: Sequence[tuple[str, str, float, str]]) -> Markup:
    """A bar of shares and what they are: name, label, share, explanation. What is nothing is left out."""
    some = [each for each in shares if each[2] >= 0.0005]
    bar = [
        tag("div", class_=f"s-{name}", style=f"flex:{share:.4f}", title=f"{label}: {share:.1%}")
        for name, label, share, _ in some
    ]
    said = ", ".join(f"{label} {share:.0%}" for _, label, share, _ in some)
    lines = [
        [
            join([tag("span", class_=f"swatch s-{name}", aria_hidden="true"), label]),
            explained,
            f"{share:.1%}",
        ]
        for name, label, share, explained in some
    ]
    return join(
        [
            tag("div", bar, class_="stack", role="img", aria_label=said),
            tag("div", table(["", "", "share"], lines, text_columns=2), class_="stacked"),
        ]
    )
