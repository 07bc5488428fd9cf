"""Tells whether recorded runs of the buckets of streams were behaviours of `StreamState.tla`.

`spec.stream_recorder` says what tasks and processes write down. `spec.stream_runs`, which drives a run, adds
how it goes on:

    plan      ordered; sinks: how many, each with the action of its number. Action 0 takes rows to none
    batch     a micro-batch begins
    take      a sink has taken its rows; skip: it has begun no action
    log       the micro-batch is committed
    restart   it begins again, with the same input, perhaps in another run of the query
    kill      the process for calls of this number is about to be killed

Here the events become steps of `StreamStateTrace`, in their order. Opening a bucket is one step there, and
two events in a process, between which other tasks have theirs: calls that begin in between are counted with
the task that opened it first. Which version of a state was committed is seen by who reads it next.

    python -m spec.stream_trace FILE...
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .recorded import Event, accepted_of, read_events, refused_steps

MODULE = "StreamState"

NO_RESULT = (0, 0)
UNKNOWN = (-1, -1)
"""The result that an output stands for which no call is known to have given."""

NEVER = ("never",)
"""A step that no behaviour has."""

KEY, CONTENT, EQUAL = slice(16, 32), slice(16, 64), slice(64, 72)
"""Parts of an identity, in hexadecimal digits; see `pillarbox.spark.stream.bucket_state`."""


@dataclass(frozen=True)
class Run:
    """The constants and events of a run, for TLC. input: of each row its part, bucket, key and content."""

    input: Sequence[tuple[int, int, int, int]]
    ordered: bool
    sinks: int
    processes: int
    failures: int
    steps: Sequence[tuple[Any, ...]]


@dataclass
class _Execution:
    """A task's execution of one bucket. begun, batch: the numbers of starts and micro-batches before it."""

    start: Event
    run: int
    batch: int
    rows: Sequence[str] = ()
    waiting: int = 0
    record: Event | None = None
    opens: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    opened: str | None = None
    """The life of the process in which it has opened its bucket."""
    is_given_up: bool = False
    is_done: bool = False

    def forget_open(self, events: Sequence[Event], life: str) -> None:
        """It is refused before it has begun a call or read a result: so its bucket was not opened by it."""
        last = max((*self.begins, *self.reads), default=-1)
        for place in [*self.opens]:
            if place > last and events[place]["life"] == life:
                self.opens.remove(place)

    @property
    def bucket(self) -> int:
        """The bucket, by a number of the model's."""
        return int(self.start["bucket"]) + 1


def by_stream(events: Sequence[Event]) -> dict[str, list[Event]]:
    """The events of each stream."""
    names = dict.fromkeys(event["stream"] for event in events if "stream" in event)
    # A process that is killed has calls of all of them.
    return {name: [event for event in events if event.get("stream", name) == name] for name in names}


def run_of(events: Sequence[Event]) -> Run:
    """The events of one stream in the words of the model."""
    return _Reader(events).run()


class _Reader:
    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.executions: dict[tuple[str, int], _Execution] = {}
        self.places: dict[tuple[str, int], int] = {}
        self.steps: list[tuple[Any, ...]] = []
        self.failures = 0
        self.rows: dict[str, int] = {}
        self.input: list[tuple[int, int, int, int]] = []
        self.parts: dict[int, int] = {}
        # Of executors: the number of each, and what makes its calls now. Also, processes that were killed.
        self.processes: dict[int, int] = {}
        self.attached: dict[int, Event] = {}
        self.lives: dict[int, str] = {}
        self.killed: set[int] = set()
        self.is_running = False
        self.home: dict[int, int] = {}
        # Calls of each row, the one of each life, and what they have given.
        self.made: Counter[int] = Counter()
        self.calls: dict[tuple[str, int], int] = {}
        self.results: dict[str, tuple[int, int]] = {}
        self.credited: set[int] = set()
        self.runs = self.batches = 0

    def run(self) -> Run:
        (plan,) = (event for event in self.events if event["what"] == "plan")
        self._find_executions()
        self._find_input()
        self.runs = self.batches = 0
        # The model knows no buckets that never have a row.
        self.buckets = {bucket for _, bucket, _, _ in self.input}
        for at, event in enumerate(self.events):
            does = getattr(self, f"_{event['what']}", None)
            if "bucket" in event and event["bucket"] + 1 not in self.buckets:
                if event["what"] == "record" and (event["emitted"] or any(event["state"].values())):
                    self.steps.append(NEVER)
            elif does is not None and self._is_of_this_life(event):
                does(at, event)
        return Run(
            self.input,
            plan["ordered"],
            plan["sinks"],
            max(1, len(self.processes)),
            self.failures,
            self.steps,
        )

    def _find_executions(self) -> None:
        # Each micro-batch has a time of its own, and executions.
        times = sorted({event["time"] for event in self.events if event["what"] == "start"})
        for at, event in enumerate(self.events):
            what = event["what"]
            self.runs += what == "restart"
            key = (event.get("task", ""), event.get("bucket", -1))
            if what == "start":
                self.executions[key] = _Execution(event, self.runs, times.index(event["time"]) + 1)
                self.places[key] = at
            elif key in self.executions:
                execution = self.executions[key]
                if what == "advance":
                    execution.rows, execution.waiting = event["rows"], event["waiting"]
                elif what == "record":
                    execution.record = event
                elif what in ("open", "late"):
                    if what == "late":
                        execution.forget_open(self.events, event["life"])
                    execution.opens.append(at)
                elif what == "begin":
                    execution.begins.append(at)
                elif what == "read":
                    execution.reads.append(at)

    def _find_input(self) -> None:
        new: dict[tuple[int, int], Sequence[str]] = {}
        for each in self.executions.values():
            if each.rows[each.waiting :]:
                new.setdefault((each.start["time"], each.bucket), each.rows[each.waiting :])
        keys: dict[str, int] = {}
        contents: dict[str, int] = {}
        for (time_ms, bucket), identities in sorted(new.items()):
            part = self.parts.setdefault(time_ms, len(self.parts) + 1)
            for identity in identities:
                content = contents.setdefault(identity[CONTENT], len(contents) + 1)
                key = keys.setdefault(identity[KEY], len(keys) + 1)
                self.input.append((part, bucket, key, content))
                self.rows[identity] = len(self.input)
                equal = sum(row[0] == part and row[3] == content for row in self.input)
                if int(identity[EQUAL], 16) != equal - 1:
                    self.steps.append(NEVER)

    def _is_of_this_life(self, event: Event) -> bool:
        return "life" not in event or event["what"] == "attach" or event["life"] in self.lives.values()

    def _process_of(self, event: Event) -> int:
        (executor,) = (each for each, life in self.lives.items() if life == event["life"])
        return self.processes[executor]

    def _is_current(self, execution: _Execution) -> bool:
        is_of_now = (execution.run, execution.batch) == (self.runs, self.batches)
        return self.is_running and is_of_now and not execution.is_given_up

    def _numbers(self, identities: Iterable[str]) -> set[int]:
        return {self.rows.get(identity, 0) for identity in identities}

    def _entries(self, state: Event) -> list[dict[str, Any]]:
        """A state as the model has it: rows in the order in which they came, each with its result."""
        found = [(self.rows.get(identity, 0), NO_RESULT) for identity in state["waiting"]]
        if found != sorted(found):
            found.append((0, UNKNOWN))
        for output in (*state["blocked"], *state["leaving"]):
            result = self.results.get(output, UNKNOWN)
            found.append((result[0], result))
        return [{"row": row, "result": result} for row, result in sorted(found)]

    # -- what drivers say ---------------------------------------------------------------------------

    def _batch(self, at: int, event: Event) -> None:
        self.batches += 1
        self.is_running = True
        own = [each for each in self.executions.values() if each.batch == self.batches]
        time_ms = own[0].start["time"] if own else -1
        self.steps.append(("begin", self.parts.get(time_ms, 0), any(each.start["ticked"] for each in own)))
        # The model knows a task that comes only after the commit where the driver has begun again: so it has,
        # before anything was done.
        log = next(
            (i for i in range(at, len(self.events)) if self.events[i]["what"] == "log"), len(self.events)
        )
        late = [each for each in own if each.opens and each.opens[0] > log]
        if late:
            self._restart_with(late)

    def _restart(self, at: int, event: Event) -> None:
        self.runs += 1
        self._restart_with(
            each
            for each in self.executions.values()
            if (each.run, each.batch) <= (self.runs - 1, self.batches)
            if each.batch == self.batches and each.opens and each.opens[0] > at and each.run < self.runs
        )

    def _restart_with(self, unopened: Iterable[_Execution]) -> None:
        self.failures += 1
        found = set()
        for each in unopened:
            life = self.events[each.opens[0]]["life"]
            (attach,) = (e for e in self.events if e["what"] == "attach" and e["life"] == life)
            found.add((each.bucket, self._number_of(attach["executor"])))
        self.steps.append(("restart", found))

    def _number_of(self, executor: int) -> int:
        return self.processes.setdefault(executor, len(self.processes) + 1)

    def _take(self, at: int, event: Event) -> None:
        self.steps.append(("take", event["sink"]))

    def _skip(self, at: int, event: Event) -> None:
        self.steps.append(("skip", event["sink"]))

    def _log(self, at: int, event: Event) -> None:
        self.is_running = False
        # Without a movement of the clock a micro-batch leaves buckets as they are.
        read: dict[int, Event] = {}
        for later in sorted(self.executions.values(), key=lambda each: each.batch):
            if later.batch > self.batches and later.bucket in self.buckets:
                read.setdefault(later.bucket, later.start["state"])
        self.steps.append(("log", [(bucket, self._entries(state)) for bucket, state in sorted(read.items())]))

    def _kill(self, at: int, event: Event) -> None:
        self.killed.add(event["pid"])

    # -- what processes and tasks say ---------------------------------------------------------------

    def _attach(self, at: int, event: Event) -> None:
        executor = event["executor"]
        if executor in self.lives:
            # Another one makes the calls from now on.
            self.failures += 1
            before = self.attached[executor]
            # A query that is built anew has its calls made anew.
            is_anew = event["plan"] != before["plan"]
            has_ended = is_anew or int(before["life"].partition("-")[0]) in self.killed
            self.steps.append(("kill", self.processes[executor]) if has_ended else NEVER)
        self._number_of(executor)
        self.attached[executor] = event
        self.lives[executor] = event["life"]

    def _start(self, at: int, event: Event) -> None:
        """Another attempt of a task of an action: what one before it has done there does not count."""
        for each in self.executions.values():
            is_other = each.start["task"] != event["task"] and each.start["action"] == event["action"]
            if not (is_other and each.start["bucket"] == event["bucket"] and self._is_current(each)):
                continue
            if self.places[event["task"], event["bucket"]] < self.places[each.start["task"], event["bucket"]]:
                continue
            of_task = [one for one in self.executions.values() if one.start["task"] == each.start["task"]]
            for one in of_task:
                one.is_given_up = True
            if any(one.is_done or one.opened in self.lives.values() for one in of_task):
                self.failures += 1
                self.steps.append(("fail", event["action"], {one.bucket for one in of_task} & self.buckets))

    def _open(self, at: int, event: Event) -> None:
        execution = self.executions[event["task"], event["bucket"]]
        life = event["life"]
        if execution.opened == life or at not in execution.opens:
            # It has come again, with rows that were missing; or it does not come further.
            return
        execution.opened = life

        def here(places: Sequence[int]) -> list[int]:
            return [place for place in places if place > at and self.events[place]["life"] == life]

        begins, reads = here(execution.begins), here(execution.reads)
        held = self.events[begins[0]]["held"] if begins else event["held"]
        end = begins[0] if begins else at if reads else len(self.events)
        begun: list[str] = []
        for place in range(at, end + 1 if begins else end):
            other = self.events[place]
            if other["what"] != "begin" or (other["life"], other["bucket"]) != (life, event["bucket"]):
                continue
            if place not in self.credited:
                self.credited.add(place)
                begun += other["begun"]
        if not begins and not reads:
            # The process was killed in between: nobody knows which calls had begun.
            held = execution.rows
            begun += [each for each in held if each not in {*begun, *event["held"]}]
            begun = [each for each in begun if (life, self.rows.get(each, 0)) not in self.calls]
        bucket, process = execution.bucket, self._process_of(event)
        numbers = self._numbers(begun)
        if len(numbers) < len(begun):
            self.steps.append(NEVER)
        for row in numbers:
            self.made[row] += 1
            self.calls[life, row] = self.made[row]
        words = (bucket, process, self._entries(execution.start["state"]), self._numbers(held), numbers)
        if self._is_current(execution):
            self.home[bucket] = process
            self.steps.append(("open", execution.start["action"], *words))
        else:
            self.steps.append(("open late", *words))

    def _begin(self, at: int, event: Event) -> None:
        if at not in self.credited and event["begun"]:
            self.steps.append(NEVER)

    def _late(self, at: int, event: Event) -> None:
        execution = self.executions[event["task"], event["bucket"]]
        age = self.batches - self.is_running - execution.batch + 1
        self.steps.append(("refuse", execution.bucket, self._process_of(event), age))

    def _finish(self, at: int, event: Event) -> None:
        self.steps += [("finish", self._process_of(event), self.rows.get(each, 0)) for each in event["rows"]]

    def _read(self, at: int, event: Event) -> None:
        for identity, output in event["results"]:
            row = self.rows.get(identity, 0)
            result = (row, self.calls.get((event["life"], row), 0))
            if self.results.setdefault(output, result) != result:
                self.results[output] = UNKNOWN
        execution = self.executions[event["task"], event["bucket"]]
        # The answer to an earlier one was lost with its process.
        if execution.record is not None and at == execution.reads[-1]:
            self._record_of(execution, self._process_of(event))

    def _record(self, at: int, event: Event) -> None:
        execution = self.executions[event["task"], event["bucket"]]
        if not execution.opens and self._is_current(execution):
            process = self.home.get(execution.bucket, 1)
            base = self._entries(execution.start["state"])
            self.steps.append(
                NEVER if base else ("pass", execution.start["action"], execution.bucket, process)
            )
            self._record_of(execution, process)

    def _record_of(self, execution: _Execution, process: int) -> None:
        assert execution.record is not None
        execution.is_done = True
        action = execution.start["action"] if self._is_current(execution) else -1
        emitted = [self.results.get(output, UNKNOWN) for output in execution.record["emitted"]]
        rows = [(result[0], result) for result in emitted]
        version = self._entries(execution.record["state"])
        self.steps.append(("record", action, execution.bucket, process, rows, version))


# -- the judge -------------------------------------------------------------------------------------


def accepted_by_tlc(runs: Sequence[Run]) -> list[bool]:
    """Check the runs with TLC: True for each that it accepts."""
    return accepted_of(MODULE, [_words(run) for run in runs])


def refused_at(run: Run) -> int:
    """The place of the first step that TLC refuses; that behind the last one, if it refuses the run's end."""
    (at,) = refused_steps(MODULE, [_words(run)])
    return len(run.steps) if at is None else at


def _words(run: Run) -> dict[str, Any]:
    rows = [dict(zip(("part", "bucket", "key", "content"), row, strict=True)) for row in run.input]
    return {**vars(run), "input": rows}


def main(words: Sequence[str]) -> int:
    """Judge the streams of recorded files, and say what came of it; 1 if one is refused."""
    began = time.monotonic()
    runs = {
        f"{path} {name}": run_of(each)
        for path in words
        for name, each in by_stream(read_events(Path(path))).items()
    }
    accepted = accepted_by_tlc([*runs.values()])
    for (name, run), is_accepted in zip(runs.items(), accepted, strict=True):
        if not is_accepted:
            at = refused_at(run)
            print(f"{name}: refused at {at}, {run.steps[at] if at < len(run.steps) else 'its end'}")
    names = Counter(step[0] for run in runs.values() for step in run.steps)
    print(", ".join(f"{name} {count}" for name, count in sorted(names.items())))
    rows = sum(len(run.input) for run in runs.values())
    print(f"{sum(accepted)} of {len(runs)} runs accepted; {rows} rows; {time.monotonic() - began:.1f} s")
    return 0 if all(accepted) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
