"""Figures of the sources: several ways to do one piece of work, measured in rounds that are interleaved.

What is compared is compared within a round. One thread measures; what it measures may have more.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil

from bench.cpu import tree_time
from bench.small import held_back

Say = Callable[[str], None]
ACKNOWLEDGEMENTS = "ACKs"
"""The unit of acknowledgements that the kernel held back."""


class Way(NamedTuple):
    """A way to do the work: `run` does all of it once, and raises AssertionError if its answer is wrong."""

    name: str
    run: Callable[[], None]


@dataclass(frozen=True)
class Effort:
    """The effort of a measurement. size: 1 is that of the figures in the README."""

    rounds: int = 5
    size: float = 1.0
    warm_up: bool = True
    """True to do everything once before it is measured."""

    def of(self, rows: int, least: int = 1) -> int:
        """So many rows at this size."""
        return max(least, round(rows * self.size))


@dataclass
class Runs:
    """The rounds of one way: seconds, and seconds of CPU time of all processes that took part.

    held: the acknowledgements that the kernel held back, of the machine.
    """

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    held: list[int] = field(default_factory=list)


@dataclass
class Figure:
    """A line of the table. against: the figure that the ratios of the rounds are to."""

    part: str
    name: str
    unit: str
    values: list[float]
    per_core: list[float] = field(default_factory=list)
    """Rows for a second of CPU time, whichever process used it."""
    against: str = ""
    ratios: list[float] = field(default_factory=list)
    core_ratios: list[float] = field(default_factory=list)
    target: str = ""
    met: bool | None = None

    @property
    def median(self) -> float:
        """The median round."""
        return statistics.median(self.values)


def rounds(ways: Sequence[Way], effort: Effort, say: Say, server: int | None = None) -> dict[str, Runs]:
    """Each way once to warm up, if so asked, then round by round, in an order that turns round.

    server: the process, if this one has started it, whose CPU time is not counted.
    """
    for way in ways if effort.warm_up else ():
        way.run()
    results = {way.name: Runs() for way in ways}
    for number in range(effort.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            held, before, began = held_back(), cpu_seconds(server), time.perf_counter()
            way.run()
            seconds = time.perf_counter() - began
            results[way.name].held.append(held_back() - held)
            results[way.name].seconds.append(seconds)
            results[way.name].cpu.append(cpu_seconds(server) - before)
            say(f"round {number + 1}: {way.name}: {seconds:.3f} s")
    return results


def cpu_seconds(server: int | None = None) -> float:
    """CPU time so far of this process and all that it has started, without that of one."""
    used = tree_time(psutil.Process()).total
    if server is not None:
        with suppress(psutil.NoSuchProcess):
            used -= tree_time(psutil.Process(server)).total
    return used


def rates(
    part: str, runs: Mapping[str, Runs], rows: int, against: Mapping[str, str], target: str = ""
) -> list[Figure]:
    """Rows a second of each way, and the ratios to the way that `against` names for it."""
    figures = []
    for name, each in runs.items():
        figure = Figure(
            part,
            name,
            "rows/s",
            [rows / seconds for seconds in each.seconds],
            # A way that took less than a tick of the clock of other processes has used one. Where a worker of
            # an earlier way has ended meanwhile, and nobody knows its time any more, nothing was measured.
            [rows / max(cpu, 0.001) for cpu in each.cpu if cpu >= 0.0],
            against=against.get(name, ""),
        )
        base = runs.get(figure.against)
        if base is not None:
            figure.ratios = [other / own for own, other in zip(each.seconds, base.seconds, strict=True)]
            both = zip(each.cpu, base.cpu, strict=True)
            figure.core_ratios = [other / own for own, other in both if own > 0.0 and other > 0.0]
        figures.append(figure)
    return figures


def acknowledgements(part: str, runs: Mapping[str, Runs], parts: int, what: str) -> list[Figure]:
    """The acknowledgements held back in each way, for one of so many parts of a round.

    Each may cost 40 ms, where somebody waits for it. They are of the machine, so of all that it runs.
    """
    return [
        Figure(part, f"{name}: held back {what}", ACKNOWLEDGEMENTS, [held / parts for held in each.held])
        for name, each in runs.items()
    ]


def must_be(expected: Any, found: Any, what: str) -> None:
    """Raise AssertionError unless the answer is right."""
    if found != expected:
        raise AssertionError(f"{what}: {found!r} instead of {expected!r}")
