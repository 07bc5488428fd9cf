"""Tells whether recorded runs of a source's coordinator were behaviours of `SplitAssignment.tla`.

`spec.source_recorder` says what coordinators write down. Splits are called by their numbers, in the order in
which they are found, and all have as many records. Whoever drives a run adds:

    plan          delivery, splits, length, readers: how many; available_now
    row           the reader `life` of a task has put out record `record` of a split
    part          it has given its part of a checkpoint; taken_up: of the messages up to this number
    driver dies   with all readers; restored: another driver begins, with so many readers
    arrive        a split has one record more
    restart       a stream is begun, or begun again, with so many tasks
    planned       a micro-batch was planned, from the offset of number `start` on; offset: None or the new one
    sink          a micro-batch was run, with these rows
    stopped       Spark has written down so many offsets, and so many of them are done
    end           the query has ended by itself

Here the events become steps of `SplitAssignmentTrace`, in their order. A reader's own steps, hearing of a
split and reading it, are put where they are seen at the latest: they change nothing of the coordinator's.

    python -m spec.source_trace FILE...
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .recorded import Event, accepted_of, read_events, refused_steps

MODULE = "SplitAssignment"

Step = tuple[Any, ...]
Place = tuple[int, int]

NEVER: Step = ("never",)
"""A step that no behaviour has."""


@dataclass(frozen=True)
class Run:
    """The constants and events of a run, as TLC gets them."""

    delivery: str
    splits: int
    length: int
    readers: int
    crashes: int
    available_now: bool
    steps: Sequence[Step]


@dataclass
class _Life:
    """A reader of a task: what it was given, and how much of that it has."""

    name: str = ""
    given: list[tuple[int, list[Place]]] = field(default_factory=list)
    """By the number of the message."""
    heard: int = 0
    """Splits."""


def run_of(events: Sequence[Event]) -> Run:
    """The events of one run in the words of the model."""
    return _Reader(events).run()


class _Reader:
    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        (self.plan,) = (event for event in events if event["what"] == "plan")
        self.steps: list[Step] = []
        self.crashes = 0
        self.known = 0
        self.source = 0
        """The number of the last coordinator that is no more."""
        # Tasks, by their numbers.
        self.lives: dict[int, _Life] = {at: _Life() for at in range(1, self.plan["readers"] + 1)}
        self.missing: set[int] = set()
        self.left: set[int] = set()
        self.asked: set[int] = set()
        self.told: set[int] = set()
        # Micro-batches.
        self.number = 0
        self.phase = "down"

    def run(self) -> Run:
        for at, event in enumerate(self.events):
            self.at = at
            does = getattr(self, f"_{event['what'].replace(' ', '_')}", None)
            # What a coordinator still does while its driver is killed is seen by nobody.
            if does is not None and event.get("source", self.source + 1) > self.source:
                does(event)
        plan = self.plan
        return Run(
            plan["delivery"],
            plan["splits"],
            plan["length"],
            plan["readers"],
            self.crashes,
            plan.get("available_now", False),
            self.steps,
        )

    def _places(self, splits: Sequence[Sequence[Any]]) -> set[Place]:
        """Splits with places; without those that are read to their end."""
        found = [(int(name), int(place)) for name, place in splits]
        return {(split, place) for split, place in found if place < self.plan["length"]}

    # -- what all uses have --------------------------------------------------------------------------

    def _pool(self, event: Event) -> None:
        known = event["known"] if isinstance(event["known"], int) else len(event["known"])
        if self.plan["delivery"] == "planned":
            return
        if known > self.known:
            self._finds(known)
        self.steps.append(("pool", self._places(event["waiting"])))

    def _finds(self, known: int) -> None:
        self.known = known
        self.steps += [("discover", known), ("take up",)]

    # -- tasks -----------------------------------------------------------------------------------------

    def _open(self, event: Event) -> None:
        reader = event["subtask"] + 1
        if self.lives[reader].name and reader not in self.missing:
            self._dies(reader)
        self.left.discard(reader)
        self.lives[reader] = _Life(event["life"])

    def _opened(self, event: Event) -> None:
        reader = event["subtask"] + 1
        if reader in self.missing:
            self._returns(reader, set())

    def _returns(self, reader: int, splits: set[Place]) -> None:
        self.missing.discard(reader)
        self.steps.append(("return", reader, splits))

    def _dies(self, reader: int) -> None:
        self.crashes += 1
        self.steps += [("reader dies", reader), ("add back", reader)]
        self.missing.add(reader)
        self.asked.discard(reader)
        self.told.discard(reader)

    def _give(self, event: Event) -> None:
        reader, splits = event["subtask"] + 1, self._places(event["splits"])
        self.lives[reader].given.append((event["number"], sorted(splits)))
        if reader in self.missing:
            self._returns(reader, splits)
        else:
            self.asked.discard(reader)
            self.steps.append(("assign", reader, splits))

    def _request(self, event: Event) -> None:
        reader = event["subtask"] + 1
        if reader not in self.asked | self.told | self.missing:
            self.asked.add(reader)
            self.steps.append(("ask", reader))

    def _no_more(self, event: Event) -> None:
        reader = event["subtask"] + 1
        self.asked.discard(reader)
        self.told.add(reader)
        self.steps.append(("no more", reader))

    def _leave(self, event: Event) -> None:
        reader = event["subtask"] + 1
        if event["done"]:
            self._hear(reader, None)
            self.left.add(reader)
            self.steps.append(("leave", reader))
        else:
            self._dies(reader)

    def _hear(self, reader: int, until: int | None, split: int | None = None) -> None:
        """It has heard of what it was given up to a message, or up to a split; of all, where neither is."""
        life = self.lives[reader]
        given = [(number, place) for number, places in life.given for place in places]
        while life.heard < len(given):
            number, _ = given[life.heard]
            if until is not None and number > until:
                return
            if split is not None and split in {place[0] for _, place in given[: life.heard]}:
                return
            life.heard += 1
            self.steps.append(("hear", reader))

    def _is_there(self, event: Event) -> bool:
        """True if the row is there: an end that counts as dead does not move its place."""
        reader = event["subtask"] + 1
        return self.lives[reader].name == event["life"] and reader not in self.missing

    def _row(self, event: Event) -> None:
        if self._is_there(event):
            reader, split = event["subtask"] + 1, int(event["split"])
            self._hear(reader, None, split)
            self.steps.append(("read", reader, (split, event["record"])))

    def _part(self, event: Event) -> None:
        if self._is_there(event):
            reader = event["subtask"] + 1
            self._hear(reader, event["taken_up"])
            self.steps.append(("part", reader, self._places(event["splits"])))

    def _checkpoint(self, event: Event) -> None:
        # One that never came has nothing. The model has all there from the beginning.
        self.steps += [("part", reader, set()) for reader, life in self.lives.items() if not life.name]
        parts = [(int(at) + 1, self._places(splits)) for at, splits in event["readers"].items()]
        self.steps.append(("checkpoint", event["known"], self._places(event["waiting"]), parts))

    def _complete(self, event: Event) -> None:
        self.steps.append(("complete",))

    def _driver_dies(self, event: Event) -> None:
        self.crashes += 1
        self.source = max(each["source"] for each in self.events[: self.at] if "source" in each)
        self.steps.append(("driver dies",))
        for each in (self.missing, self.left, self.asked, self.told):
            each.clear()
        self.lives = {}

    def _restored(self, event: Event) -> None:
        self.lives = {at: _Life() for at in range(1, event["readers"] + 1)}
        self.steps.append(("restore", event["readers"]))
        # What is known then is that of the checkpoint.
        self.known = event["known"]

    # -- micro-batches ---------------------------------------------------------------------------------

    def _arrive(self, event: Event) -> None:
        self.steps.append(("arrive", int(event["split"])))

    def _restart(self, event: Event) -> None:
        if self.phase != "down":
            self.crashes += 1
            self.steps.append(("driver dies",))
        self.phase = "logged" if self.phase in ("logged", "ran") else "idle"
        self.steps.append(("restore", event["tasks"]))

    def _planned(self, event: Event) -> None:
        if self.phase == "ran":
            self._done()
        if self.phase == "planned" and event["start"] == self.number - 1:
            self.crashes += 1
            self.number, self.phase = self.number - 1, "idle"
            self.steps.append(("drop",))
        elif self.phase == "planned":
            self.steps += [("log",), NEVER]
        offset = event["offset"]
        if offset is None:
            return
        known = offset["known"] if isinstance(offset["known"], int) else len(offset["known"])
        if known > self.known:
            self._finds(known)
        self.number, self.phase = offset["number"], "planned"
        slices = {(int(split), start, stop) for split, start, stop in offset["slices"]}
        self.steps.append(("plan", known, self._places(offset["splits"]), slices))

    def _logs_offset(self) -> None:
        if self.phase == "planned":
            self.phase = "logged"
            self.steps.append(("log",))

    def _done(self) -> None:
        self.phase = "idle"
        self.steps.append(("done",))

    def _sink(self, event: Event) -> None:
        self._logs_offset()
        self.phase = "ran"
        self.steps.append(("run", {(int(split), record) for split, record in event["rows"]}))

    def _notify(self, event: Event) -> None:
        if self.plan["delivery"] != "planned":
            return
        if self.phase == "ran":
            self._done()
        self.steps.append(("notify", [(int(name), place) for name, place in event["positions"].items()]))

    def _stopped(self, event: Event) -> None:
        if event["offsets"] >= self.number:
            self._logs_offset()
        if self.phase == "ran" and event["done"] >= self.number:
            self._done()

    def _end(self, event: Event) -> None:
        self.steps.append(("end",))


# -- the judge -------------------------------------------------------------------------------------


def accepted_by_tlc(runs: Sequence[Run]) -> list[bool]:
    """Check the runs with TLC: True for each that it accepts."""
    return accepted_of(MODULE, [vars(run) for run in runs])


def refused_by_tlc(runs: Sequence[Run]) -> list[int | None]:
    """Of each run the place of the first step that TLC refuses, that behind the last for its end; or None."""
    return refused_steps(MODULE, [vars(run) for run in runs])


def explained(run: Run) -> str:
    """The step that TLC refuses, and some of those before it."""
    (at,) = refused_by_tlc([run])
    if at is None:
        return "accepted"
    before = [str(step) for step in run.steps[max(0, at - 8) : at]]
    return "\n".join([*before, f"refused at {at}: {[*run.steps, 'its end'][at]}"])


def main(words: Sequence[str]) -> int:
    """Judge the runs of recorded files, one of each, and say what came of it; 1 if one is refused."""
    began = time.monotonic()
    runs = {path: run_of(read_events(Path(path))) for path in words}
    accepted = accepted_by_tlc([*runs.values()])
    for (path, run), is_accepted in zip(runs.items(), accepted, strict=True):
        if not is_accepted:
            print(f"{path}:\n{explained(run)}")
    names = Counter(step[0] for run in runs.values() for step in run.steps)
    print(", ".join(f"{name} {count}" for name, count in sorted(names.items())))
    print(f"{sum(accepted)} of {len(runs)} runs accepted; {time.monotonic() - began:.1f} s")
    return 0 if all(accepted) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
