"""Draws the pictures of the documentation: `make docs` runs it and writes into docs/pictures.

The boxes and arrows of a task and of an operator are in the tables below, in units of a grid. The parts of
the package are those of `spec/rings.py`, and the arrows between them what the sources import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from spec.rings import FACE, LAYERS, RINGS, file_imports, part_imports  # noqa: E402

UNIT = 20
WIDTH, HEIGHT = 66, 24

# left, top, width, height, colour, lines of text
BOXES: list[tuple[float, float, float, float, str, list[str]]] = [
    (0.5, 4, 7.5, 4, "#e8eef7", ["reading thread", "Arrow batches in"]),
    (12.2, 1, 41.4, 15, "#fdf1ee", []),
    (13, 4, 4.5, 4, "#ffffff", ["input"]),
    (20.5, 4, 10.5, 4, "#ffffff", ["async operator", "its window of rows:", "tries again, puts in order"]),
    (34, 4, 10.5, 4, "#ffffff", ["async operator", "the next of a chain,", "if there is one"]),
    (48.5, 4, 4.5, 4, "#ffffff", ["output"]),
    (13, 12, 4.5, 3, "#ffffff", ["mailbox"]),
    (21.5, 12, 8.5, 3, "#ffffff", ["calls, bounded"]),
    (35, 12, 8.5, 3, "#ffffff", ["calls, bounded"]),
    (58, 4, 7.5, 4, "#e8eef7", ["Spark's thread", "Arrow batches out"]),
    (21.5, 20, 8.5, 3, "#eef5ea", ["a service"]),
    (35, 20, 8.5, 3, "#eef5ea", ["another one"]),
]
TITLES = [
    (33, 2.6, "a task on its mailbox thread: one event loop, owns all state"),
    (14.8, 9.9, "timed out,"),
    (14.8, 10.9, "checkpoint"),
]
# from x, y to x, y, text, where the text stands
ARROWS: list[tuple[float, float, float, float, str, float, float]] = [
    (8, 6, 13, 6, "handover", 10.1, 5.5),
    (17.5, 6, 20.5, 6, "link", 18.9, 5.5),
    (31, 6, 34, 6, "link", 32.4, 5.5),
    (44.5, 6, 48.5, 6, "", 0, 0),
    (53, 6, 58, 6, "handover", 55.8, 5.5),
    (25.8, 8, 25.8, 12, "a free slot", 28.4, 10.2),
    (39.2, 8, 39.2, 12, "a free slot", 41.8, 10.2),
    (21.5, 13.5, 17.5, 13.5, "mail", 19.5, 13.1),
    (16.5, 12, 21, 8, "finished,", 14.8, 8.9),
    (24.8, 15, 24.8, 20, "", 0, 0),
    (26.8, 20, 26.8, 15, "", 0, 0),
    (38.2, 15, 38.2, 20, "", 0, 0),
    (40.2, 20, 40.2, 15, "", 0, 0),
]
# The objects of one operator, in the same form.
OPERATOR_BOXES: list[tuple[float, float, float, float, str, list[str]]] = [
    (12.2, 1, 41.4, 20.5, "#fdf1ee", []),
    (0.5, 4, 7.5, 3.5, "#e8eef7", ["reading thread"]),
    (13, 4, 4, 3.5, "#ffffff", ["input"]),
    (20, 4, 7.5, 3.5, "#ffffff", ["admission: rows", "take an entry"]),
    (30, 4, 6.5, 3.5, "#eef5ea", ["kernel:", "result queue"]),
    (39, 4, 7, 3.5, "#ffffff", ["emission: one", "mail for all"]),
    (48.5, 4, 4.5, 3.5, "#ffffff", ["output"]),
    (47, 8.4, 6, 2.4, "#ffffff", ["bytes held"]),
    (58, 4, 7.5, 3.5, "#e8eef7", ["thread that", "takes results"]),
    (13, 10.5, 5, 3.5, "#eef5ea", ["kernel:", "mailbox"]),
    (21.5, 10.5, 12, 3.5, "#ffffff", ["scheduler: waiting calls,", "slots; asks the policies"]),
    (37, 10.5, 8, 3.5, "#ffffff", ["runner: calls", "the function"]),
    (21.5, 17, 12, 3, "#ffffff", ["deadlines, pauses, time account"]),
    (37, 17, 8, 3, "#ffffff", ["coroutines"]),
    (0.5, 10.5, 7.5, 3.5, "#e8eef7", ["other threads"]),
    (58, 10.5, 7.5, 3.5, "#e8eef7", ["threads of a", "plain function"]),
    (58, 16.75, 7.5, 3.5, "#eef5ea", ["a service"]),
]
OPERATOR_TITLES = [
    (33, 2.6, "the mailbox thread: one event loop"),
    (33, 22.8, "answers of threads go to the mailbox as one mail for all that have come"),
]
OPERATOR_ARROWS: list[tuple[float, float, float, float, str, float, float]] = [
    (8, 5.75, 13, 5.75, "handover", 10.1, 5.2),
    (17, 5.75, 20, 5.75, "", 0, 0),
    (27.5, 5.75, 30, 5.75, "", 0, 0),
    (36.5, 5.75, 39, 5.75, "", 0, 0),
    (46, 5.75, 48.5, 5.75, "", 0, 0),
    (45, 7.5, 47.5, 8.4, "", 0, 0),
    (53, 5.75, 58, 5.75, "handover", 55.8, 5.2),
    (24.5, 7.5, 24.5, 10.5, "calls", 26, 9.3),
    (33.5, 11.5, 37, 11.5, "next", 35.2, 11),
    (37, 13.2, 33.5, 13.2, "ended", 35.2, 14.2),
    (32, 10.5, 40, 7.5, "complete", 38.2, 9.6),
    (8, 12.25, 13, 12.25, "mail", 10.1, 11.8),
    (17, 10.5, 20.5, 7.5, "turn", 17.6, 8.9),
    (27.5, 17, 27.5, 14, "timer", 29.2, 15.8),
    (40, 14, 40, 17, "", 0, 0),
    (42, 17, 42, 14, "", 0, 0),
    (45, 12.25, 58, 12.25, "a call", 51, 11.8),
    (45, 18.5, 58, 18.5, "sockets", 51, 18),
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


def picture(boxes: list[str], titles: list[str], arrows: list[str], height: float = HEIGHT) -> str:
    head = (
        "<defs><marker id='head' markerWidth='9' markerHeight='8' refX='8' refY='4' orient='auto'>"
        "<path d='M0,0 L9,4 L0,8 z' fill='#222'/></marker></defs>"
    )
    parts = "".join(boxes + titles + arrows)
    size = f"viewBox='0 0 {WIDTH * UNIT} {height * UNIT:g}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{head}{parts}</svg>\n".replace("><", ">\n<")


def task() -> str:
    return picture(
        [box(*each) for each in BOXES], [text(*each) for each in TITLES], [arrow(*e) for e in ARROWS]
    )


def operator() -> str:
    return picture(
        [box(*each) for each in OPERATOR_BOXES],
        [text(*each) for each in OPERATOR_TITLES],
        [arrow(*each) for each in OPERATOR_ARROWS],
    )


def reduced(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that no way over others says as well."""
    below: dict[str, set[str]] = {}

    def reach(part: str) -> set[str]:
        if part not in below:
            below[part] = set(imports[part]).union(*map(reach, imports[part]))
        return below[part]

    for part in imports:
        reach(part)
    return {part: its - set().union(*(below[each] for each in its)) for part, its in imports.items()}


def layers(arrows: Mapping[str, Iterable[str]] | None = None) -> str:
    """The parts of the package, and what they import. arrows: those of modules; None for all there are."""
    imports = part_imports(file_imports() if arrows is None else arrows)
    below = reduced(imports)
    level: dict[str, int] = {}
    while len(level) < len(below):
        level |= {
            name: 1 + max((level[each] for each in its), default=-1)
            for name, its in below.items()
            if its <= level.keys()
        }
    height = 4.5 * (1 + max(level.values()))
    # By the table, so that the picture stays as it is when a file is renamed.
    order = [*LAYERS, *RINGS, FACE]
    rows = [[name for name in order if level[name] == each] for each in range(1 + max(level.values()))]
    place: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        for index, name in enumerate(row):
            # Each second row is shifted, so that an arrow that passes a row passes between its boxes.
            middle = WIDTH * (index + 1) / (len(row) + 1) + (2.5 if number % 2 else -2.5)
            place[name] = middle, height - 4.5 * number - 3.5
    room = min(10.0, WIDTH / (1 + max(map(len, rows))) - 0.6)
    boxes = [box(x - room / 2, y, room, 2.5, colour_of(name), [name]) for name, (x, y) in place.items()]
    lines = [
        arrow(place[name][0], place[name][1] + 2.5, place[each][0], place[each][1], "", 0, 0)
        for name in order
        for each in sorted(below[name])
    ]
    return picture(lines, boxes, [], height)


def colour_of(part: str) -> str:
    """White for the core, green for the kernel, blue for a ring."""
    return "#e8eef7" if part in RINGS else "#eef5ea" if part == "kernel" else "#ffffff"


if __name__ == "__main__":
    folder = Path(__file__).parent / "pictures"
    folder.mkdir(exist_ok=True)
    (folder / "task.svg").write_text(task())
    (folder / "operator.svg").write_text(operator())
    (folder / "layers.svg").write_text(layers())
