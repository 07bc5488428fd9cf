"""Draws the picture of the documentation: `make docs` runs it and writes docs/pictures/task.svg.

Boxes and arrows stand in the two tables below; where they stand is counted in units of a grid.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

UNIT = 20
WIDTH, HEIGHT = 46, 24

# left, top, width, height, colour, lines of text
BOXES: list[tuple[float, float, float, float, str, list[str]]] = [
    (1, 5, 8, 4, "#e8eef7", ["reading thread", "Arrow batches in"]),
    (14, 1, 18, 15, "#fdf1ee", []),
    (15, 4, 16, 4, "#ffffff", ["operator and its result queue", "admits, retries, puts in order, emits"]),
    (15, 12, 6, 3, "#ffffff", ["mailbox"]),
    (24, 12, 7, 3, "#ffffff", ["calls, bounded"]),
    (37, 5, 8, 4, "#e8eef7", ["Spark's thread", "Arrow batches out"]),
    (24, 20, 7, 3, "#eef5ea", ["your service"]),
]
TITLES = [(23, 2.8, "mailbox thread: one event loop, owns all state")]
# from x, y to x, y, text, where the text stands
ARROWS: list[tuple[float, float, float, float, str, float, float]] = [
    (9, 6.5, 15, 6.5, "handover", 11.6, 6.0),
    (31, 6.5, 37, 6.5, "handover", 34.6, 6.0),
    (27.5, 8, 27.5, 12, "a free slot", 29.6, 10.2),
    (24, 13.5, 21, 13.5, "mail", 22.5, 13.1),
    (18, 12, 18, 8, "finished, timed out", 21.7, 10.2),
    (26, 15, 26, 20, "", 0, 0),
    (29, 20, 29, 15, "", 0, 0),
]
STYLE = "font-family='sans-serif' font-size='14' text-anchor='middle' fill='#222'"


def text(x: float, y: float, line: str) -> str:
    return f"<text x='{x * UNIT:g}' y='{y * UNIT:g}' {STYLE}>{escape(line)}</text>"


def box(left: float, top: float, width: float, height: float, colour: str, lines: list[str]) -> str:
    place = f"x='{left * UNIT:g}' y='{top * UNIT:g}' width='{width * UNIT:g}' height='{height * UNIT:g}'"
    first = top + height / 2 + 0.3 - 0.55 * (len(lines) - 1)
    words = [text(left + width / 2, first + 1.1 * number, line) for number, line in enumerate(lines)]
    return f"<rect {place} rx='6' fill='{colour}' stroke='#555'/>" + "".join(words)


def arrow(x1: float, y1: float, x2: float, y2: float, words: str, x: float, y: float) -> str:
    ends = f"x1='{x1 * UNIT:g}' y1='{y1 * UNIT:g}' x2='{x2 * UNIT:g}' y2='{y2 * UNIT:g}'"
    line = f"<line {ends} stroke='#222' stroke-width='1.5' marker-end='url(#head)'/>"
    return line + (text(x, y, words) if words else "")


def picture() -> str:
    head = (
        "<defs><marker id='head' markerWidth='9' markerHeight='8' refX='8' refY='4' orient='auto'>"
        "<path d='M0,0 L9,4 L0,8 z' fill='#222'/></marker></defs>"
    )
    boxes, titles = [box(*each) for each in BOXES], [text(*each) for each in TITLES]
    parts = "".join(boxes + titles + [arrow(*each) for each in ARROWS])
    size = f"viewBox='0 0 {WIDTH * UNIT} {HEIGHT * UNIT}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{head}{parts}</svg>\n".replace("><", ">\n<")


if __name__ == "__main__":
    target = Path(__file__).parent / "pictures" / "task.svg"
    target.parent.mkdir(exist_ok=True)
    target.write_text(picture())
