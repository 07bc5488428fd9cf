"""Tables for the terminal: `rich` where it is installed, plain columns otherwise. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Column(NamedTuple):
    """A column's heading, and whether its cells stand to the right."""

    heading: str
    right: bool = True


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print cells under their headings."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print("\n".join(plain_table(columns, rows)))
        return
    console = Console()
    if not console.is_terminal:
        # Nothing would be gained: a file or a pipe has no width to fit into.
        print("\n".join(plain_table(columns, rows)))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column.heading, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table without control characters."""
    headings = [column.heading for column in columns]
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in [headings, ["-" * width for width in widths], *rows]
    ]
