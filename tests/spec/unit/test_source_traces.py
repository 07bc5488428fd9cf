"""Recorded runs of tasks that read a source are behaviours of the specification; wrong ones are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pillarbox.sources import split_coordinator
from pillarbox.sources.enumerating import PendingSplits, Waiting
from pillarbox.sources.enumerator import NoMoreSplits
from pillarbox.sources.split_coordinator import SplitCoordinator
from spec.recorded import Event, read_events
from spec.source_runs import make_run
from spec.source_trace import accepted_by_tlc, explained, refused_by_tlc, run_of

FIRST_SEED, RUNS, FEW_RUNS = 100, 30, 3

Events = list[Event]


def record(folder: Path, seed: int) -> Events:
    return read_events(make_run(seed, folder))


@pytest.mark.contract(
    "What readers, coordinator and checkpoints of tasks do is a behaviour of the specification."
)
@pytest.mark.parametrize("count", [FEW_RUNS, pytest.param(RUNS, marks=pytest.mark.thorough)])
def test_what_tasks_that_read_a_source_do_is_a_behaviour_of_the_specification(
    count: int, tmp_path: Path
) -> None:
    runs = [run_of(record(tmp_path, seed)) for seed in range(FIRST_SEED, FIRST_SEED + count)]
    accepted = accepted_by_tlc(runs)
    assert all(accepted), explained(runs[accepted.index(False)])
    if count == FEW_RUNS:
        return
    names = Counter(step[0] for run in runs for step in run.steps)
    # When somebody dies is the seed's choice; whether before or after a checkpoint is complete, the clock's.
    assert {"add back", "return", "driver dies", "restore", "leave", "complete"} <= set(names)
    assert names["checkpoint"] > names["complete"]


def test_nothing_is_recorded_where_nobody_asks_for_it(tmp_path: Path) -> None:
    record(tmp_path, FIRST_SEED)
    assert vars(split_coordinator)["SplitCoordinator"] is SplitCoordinator


# -- planted defects -------------------------------------------------------------------------------


def nothing_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop the splits of a dead reader."""
    seen: set[tuple[int, str]] = set()
    add = PendingSplits.add

    def add_new(self: Any, waiting: Iterable[Waiting[Any]], subtask: int | None = None) -> None:
        new = [each for each in waiting if (id(self), each.split.split_id) not in seen]
        seen.update((id(self), each.split.split_id) for each in new)
        add(self, new, subtask)

    monkeypatch.setattr(PendingSplits, "add", add_new)


def goes_back_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a split that goes back from behind its first record."""
    add = PendingSplits.add

    def add_rest(self: Any, waiting: Iterable[Waiting[Any]], subtask: int | None = None) -> None:
        new, known = [*waiting], getattr(self, "known", set())
        self.known = known | {each.split.split_id for each in new}
        skipped = [replace(each, skip=1) if each.split.split_id in known else each for each in new]
        add(self, skipped, subtask)

    monkeypatch.setattr(PendingSplits, "add", add_rest)


def given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split that is given out waits once more."""
    take = PendingSplits.take

    def take_once_more(self: Any, reader: Any) -> Any:
        found = take(self, reader)
        if found is not None and not hasattr(self, "again"):
            self.again = found
            self.add([found])
        return found

    monkeypatch.setattr(PendingSplits, "take", take_once_more)


def forgets_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint has nothing of what its parts do not count in."""
    snapshot = SplitCoordinator.snapshot

    def snapshot_of_pool(self: Any, states: Any) -> Any:
        waiting = tuple(self.live.pending.waiting())
        return replace(snapshot(self, states), waiting=waiting)

    monkeypatch.setattr(SplitCoordinator, "snapshot", snapshot_of_pool)


def never_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint ever counts, and everything goes back."""
    monkeypatch.setattr(SplitCoordinator, "complete", lambda self, number: None)


def no_more_because_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers are told that no more come while somebody reads, or more may be found."""
    open_reader, request = SplitCoordinator.open, SplitCoordinator.request
    ends: dict[int, Any] = {}

    def open_and_remember(self: Any, end: Any, subtask: int, *args: Any) -> None:
        ends[subtask] = end
        open_reader(self, end, subtask, *args)

    # The recorder looks for the method of its own by this one's name.
    @wraps(request)
    def request_once(self: Any, subtask: int) -> None:
        request(self, subtask)
        if not len(self.live.pending):
            ends[subtask].deliver(NoMoreSplits())

    monkeypatch.setattr(SplitCoordinator, "open", open_and_remember)
    monkeypatch.setattr(SplitCoordinator, "request", request_once)


@pytest.mark.slow
@pytest.mark.parametrize(
    "defect",
    [
        nothing_goes_back,
        goes_back_from_its_end,
        given_twice,
        forgets_what_is_under_way,
        never_complete,
        no_more_because_nothing_waits,
    ],
)
def test_the_run_of_a_defective_coordinator_is_refused(
    defect: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    runs, wrong = [], []
    for seed in range(FIRST_SEED, FIRST_SEED + 12):
        # A coordinator or a reader may notice itself: then its run has no end.
        with suppress(Exception):
            try:
                make_run(seed, tmp_path)
            except AssertionError:
                wrong.append(len(runs))
        runs.append(run_of(read_events(tmp_path / f"{seed}.trace")))
    refused = refused_by_tlc(runs)
    assert any(at is not None and at < len(run.steps) for at, run in zip(refused, runs, strict=True))
    assert all(refused[at] is not None for at in wrong)


# -- corrupted records -----------------------------------------------------------------------------


def first(events: Events, what: str, **words: Any) -> Event:
    return next(each for each in events if each["what"] == what and words.items() <= each.items())


def a_lost_row(events: Events) -> None:
    events.remove(first(events, "row"))


def a_checkpoint_that_knows_more(events: Events) -> None:
    first(events, "checkpoint")["known"] += 1


def a_split_that_waits_no_more(events: Events) -> None:
    next(each for each in events if each["what"] == "pool" and each["waiting"])["waiting"].pop()


def another_place(events: Events) -> None:
    first(events, "give")["splits"][0][1] += 1


def two_messages_of_one_number(events: Events) -> None:
    """A reader says that it counts in what it has not heard of."""
    event = next(each for each in events if each["what"] == "part" and each["splits"])
    event["splits"].pop()


CORRUPTIONS = [
    a_lost_row,
    a_checkpoint_that_knows_more,
    a_split_that_waits_no_more,
    another_place,
    two_messages_of_one_number,
]


@pytest.mark.slow
def test_a_corrupted_run_of_tasks_is_refused(tmp_path: Path) -> None:
    recorded = [record(tmp_path, seed) for seed in range(FIRST_SEED, FIRST_SEED + 8)]
    runs = []
    for corrupt in CORRUPTIONS:
        for events in recorded:
            copy = deepcopy(events)
            try:
                corrupt(copy)
            except (StopIteration, IndexError):
                continue
            runs.append(run_of(copy))
            break
    assert len(runs) == len(CORRUPTIONS)
    assert accepted_by_tlc(runs) == [False] * len(runs)
