"""The plan of a session: faults, jobs and times, all from the seed, to be played again. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from fuzz.chaos.faults import ANYWHERE, OF_A_CLUSTER, OF_STATE
from fuzz.chaos.job import CHANGED, KINDS, LANES, STREAMS, input_ids

PARTS = 12
HANDFUL = (4, 7)
"""Faults in a run, from and to."""


@dataclass(frozen=True)
class Planned:
    """A fault: its kind, the share of the rows that are answered before, and seconds after that."""

    kind: str
    share: float
    delay: float


@dataclass(frozen=True)
class Plan:
    """A run. rows: in all. parts: tasks, or files. latency: seconds a call. badness: share of bad calls.

    checkpoint_format: of Spark's state.
    """

    number: int
    seed: str
    kind: str
    ordered: bool
    rows: int
    parts: int
    latency: float
    badness: float
    faults: tuple[Planned, ...] = ()
    checkpoint_format: int = 1

    @property
    def small_disk(self) -> bool:
        """True if the ledger is on a disk that will be full."""
        return any(planned.kind == "full disk" for planned in self.faults)

    @property
    def ids(self) -> list[int]:
        """The ids of the rows that have to be in the output."""
        return input_ids(self.kind, self.rows, self.parts)

    @property
    def has_known_parts(self) -> bool:
        """True if a row's id says which task it is in."""
        return self.kind not in ("shuffled", "repeated")

    def order_of(self, key: int) -> int:
        """The number of what a row has to be in order with: its part, or its lane of that."""
        return self.part_of(key) * LANES + (key % LANES if self.kind == "state" else 0)

    def part_of(self, key: int) -> int:
        """The task of the batch, or the file of the stream, that has a row."""
        return key % CHANGED * self.parts // self.rows


def plan_run(
    seed: int,
    number: int,
    *,
    cluster: bool,
    rows: int = 2400,
    kinds: Sequence[str] = KINDS,
    faults: Sequence[str] | None = None,
    handful: tuple[int, int] = HANDFUL,
    with_full_disk: bool = True,
) -> Plan:
    """The run of this number under this seed.

    rows: in all, about. handful: how many faults, from and to. faults: the kinds to choose from; by default
    all, and, with_full_disk, every fifth run has a disk that gets full.
    """
    dice = random.Random(f"{seed} {number}")
    kind = kinds[number % len(kinds)]
    choice = list(faults if faults is not None else (*ANYWHERE, *(["executor"] * 2 if cluster else [])))
    if faults is None and kind == "state":
        choice += [each for each in OF_STATE if cluster or each not in OF_A_CLUSTER] * 2
    planned = [
        Planned(dice.choice(choice), dice.uniform(0.05, 0.9), dice.uniform(0.0, 0.3))
        for _ in range(dice.randint(*handful))
    ]
    if with_full_disk and faults is None and number % 5 == 4:
        planned[0] = Planned("full disk", planned[0].share, 0.0)
    return Plan(
        number,
        f"{seed} {number}",
        kind,
        # Results of a column stand with their rows.
        dice.random() < 0.5 or kind == "column",
        # Parts of one size, however many there are.
        -(-rows // PARTS) * PARTS,
        6 if kind in STREAMS else 4,
        0.3 if kind == "state" else 0.06,
        0.02,
        tuple(sorted(planned, key=lambda each: each.share)),
        checkpoint_format_of(f"{seed} {number}", cluster),
    )


def checkpoint_format_of(seed: str, cluster: bool) -> int:
    """The format of Spark's state: with the first one, executors may go on from states that differ."""
    return 2 if cluster else random.Random(f"{seed} format").choice((1, 2))
