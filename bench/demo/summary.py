"""The text for the user: a title, the plan, the figures of a run, and the checks.

`Screen` belongs to the job's main thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pillarbox.spark import Progress

PLAIN_WIDTH = 100
"""Characters of a line where there is no terminal to ask."""


@dataclass(frozen=True)
class Check:
    """Something that must be true of the output: what it says, and whether it is so."""

    claim: str
    holds: bool


class Screen:
    """Writes to standard output: with colours on a terminal, without any control character when `plain`."""

    def __init__(self, plain: bool) -> None:
        self.plain = plain
        if plain:
            self._console = Console(no_color=True, force_terminal=False, width=PLAIN_WIDTH, highlight=False)
        else:
            self._console = Console(highlight=False)

    def title(self, text: str, facts: Mapping[str, str]) -> None:
        """A headline, and below it what will happen."""
        self._console.print(f"\n[bold cyan]{escape(text)}[/]")
        for name, fact in facts.items():
            self._console.print(f"  [dim]{escape(name):<9}[/]{escape(fact)}", soft_wrap=True)

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(escape(text), soft_wrap=True)

    def progress(self, label: str, total: int) -> Progress:
        """The progress of a Spark job of `total` rows: a live bar, or a line every few seconds when plain."""
        return Progress(total=total, label=label, bar=False if self.plain else None)

    def table(
        self,
        title: str,
        header: tuple[str, ...],
        rows: Sequence[tuple[str, ...]],
        *,
        left: tuple[str, ...] = (),
    ) -> None:
        """A table. Columns are aligned to the right but for those named in `left`; only those wrap."""
        table = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            collapse_padding=True,
        )
        for name in header:
            table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left)
        for row in rows:
            table.add_row(*map(escape, row))
        self._console.print()
        self._console.print(table)

    def figures(self, progress: Progress, rows_out: int) -> None:
        """Print the cost of the run: rows, seconds, calls."""
        totals = progress.totals
        figures = {
            "rows in": f"{totals.rows_in:,}",
            "rows out": f"{rows_out:,}",
            "seconds": f"{totals.seconds:,.1f}",
            "rows/s": f"{rows_out / totals.seconds:,.0f}",
            "calls": f"{totals.calls:,}",
            "retries": f"{totals.retries:,}",
            "errors": f"{totals.errors:,}",
            "mean in flight": f"{totals.mean_in_flight:,.0f}",
        }
        self.table("The run", tuple(figures), [tuple(figures.values())])

    def verdict(self, checks: list[Check], output: str, log: str) -> bool:
        """The checks, one a line, and where the output is. True if all of them hold."""
        self._console.print("\n[bold]Checks of the output[/]")
        for check in checks:
            word = "[green]ok    [/]" if check.holds else "[bold red]FAILED[/]"
            self._console.print(f"  {word} {escape(check.claim)}", soft_wrap=True)
        self.say(f"\nThe output is in {output}, and Spark's log in {log}. Next: docs/tutorial.md")
        return all(check.holds for check in checks)
