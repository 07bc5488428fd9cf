"""A scheduler that lets everything around a task happen in an order drawn from a seed, on one thread.

What other threads would do (completions, checkpoints, cancellation) are events here. They happen
between two mails, between two elements, and wherever a task would wait. The same seed gives the same order.
"""

# Why one thread and a seed. Threads that run freely find a race once in a thousand runs, and then not
# again. Here the kernel's own races cannot be found, which have tools of their own, but every order of what
# happens around a task can, and a seed gives it again.
#
# Why not Hypothesis, which would look for the shortest order: an order of some hundred events has few that
# can be left out without another course of events, and the search for it takes longer than reading the
# trace.
#
# Why events happen where the task would wait and between its mails, and nowhere else. Within a mail only
# the kernel's own promises matter, which the suites and the schedules of its headers look at; the task's
# code between two mails cannot be seen from outside.

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from pillarbox.kernel import Mail, PillarboxError, TaskMailbox
from pillarbox.task import StreamTask
from pillarbox.task.protocols import TaskState

MAX_SHOWN_EVENTS = 30
"""Events that an error shows: the last ones."""


class Deadlock(PillarboxError):
    """A task waits, and no event is left that could end that. `seed` gives the order again."""

    def __init__(self, what: str, seed: int, trace: Iterable[str]) -> None:
        self.what = what
        self.seed = seed
        self.trace = tuple(trace)
        super().__init__(what, seed, self.trace)

    def __str__(self) -> str:
        return f"{self.what} for ever, with seed {self.seed}, after {_shown(self.trace)}"


class ScheduleFailed(PillarboxError):
    """A scenario failed in one order; `__cause__` says how, `seed` gives the order again."""

    def __init__(self, seed: int, trace: Iterable[str]) -> None:
        self.seed = seed
        self.trace = tuple(trace)
        super().__init__(seed, self.trace)

    def __str__(self) -> str:
        return f"the scenario failed with seed {self.seed}, after {_shown(self.trace)}"


class SeededScheduler:
    """Draws from `seed` what happens next: a step of a script or a step of a task. Confined to one thread.

    1. `script(name, steps)` adds what happens outside: each item drawn from the iterator is one event, so a
       generator runs from one `yield` to the next. One that yields a future goes on when that is done.
    2. `event(fn, *args)` adds what happens once, at any time from now on, such as the completion of a call.
    3. A task made with `mailbox=scheduler.mailbox()` is interrupted by events between its mails, and where
       it would wait for mail. One added with `add` is stepped by `run`.
    4. A task that waits when no event is left ends the run with `Deadlock`.

    Since all is one thread, what a real thread would leave as mail may take effect at once, such as
    resuming a suspension; races inside the kernel are not this tool's matter.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[str] = []
        """The past events, by the names of scripts, events and tasks."""
        self._random = random.Random(seed)
        self._scripts: list[_Script] = []
        self._tasks: list[StreamTask] = []
        self._on_stack: list[StreamTask] = []
        self._in_event = False

    # -- what can happen ----------------------------------------------------------------------

    def script(self, name: str, steps: Iterable[Any]) -> None:
        """Add events in an order of their own."""
        self._scripts.append(_Script(name, iter(steps)))

    def event(self, fn: Callable[..., object], *args: Any, name: str | None = None) -> None:
        """Add one call, to be made at any time from now on."""
        named = getattr(fn, "__qualname__", type(fn).__qualname__) if name is None else name
        self._scripts.append(_Script(named, (call() for call in (partial(fn, *args),)), one=True))

    def mailbox(self) -> TaskMailbox:
        """A mailbox of this thread whose takes let events happen, and never wait for another thread."""
        return ScheduledMailbox(self)

    def add(self, task: StreamTask) -> None:
        """Add a task, to be stepped until it has ended."""
        self._tasks.append(task)

    # -- running ------------------------------------------------------------------------------

    def run(self) -> None:
        """Let everything happen, until every task has ended and nothing is left.

        Raises what a task or an event raises, and `Deadlock` if a task can never end.
        """
        while self._happen():
            pass
        waiting = [task.name for task in self._tasks if not _has_ended(task)]
        if waiting:
            raise self.deadlock(f"task {', '.join(map(repr, waiting))} waits")

    def deadlock(self, what: str) -> Deadlock:
        """The error for somebody who waits in vain."""
        return Deadlock(what, self.seed, self.trace)

    def interrupt(self) -> None:
        """Let some events happen, or none: as threads would, between two instructions of this one."""
        while not self._in_event and self._random.random() < 0.3:
            scripts = [script for script in self._scripts if script.is_ready]
            if not scripts:
                return
            self._step(self._draw(scripts))

    def wait(self) -> bool:
        """Let one thing happen, as the caller cannot go on; whether there was one."""
        return not self._in_event and self._happen()

    def _happen(self) -> bool:
        ready: list[_Script | StreamTask] = [script for script in self._scripts if script.is_ready]
        ready += [task for task in self._tasks if task not in self._on_stack and _can_step(task)]
        if not ready:
            return False
        chosen = self._draw(ready)
        if isinstance(chosen, _Script):
            self._step(chosen)
            return True
        self.trace.append(chosen.name)
        self._on_stack.append(chosen)
        try:
            chosen.run_step()
        finally:
            self._on_stack.pop()
        return True

    def _step(self, script: _Script) -> None:
        self.trace.append(script.name)
        self._in_event = True
        try:
            if not script.step():
                self._scripts.remove(script)
        finally:
            self._in_event = False

    def _draw(self, choices: list[Any]) -> Any:
        # Of all the methods of `random`, this one gives the same numbers in every version of Python.
        return choices[int(self._random.random() * len(choices))]


class _Script:
    """Events in an order of their own."""

    def __init__(self, name: str, steps: Iterator[Any], *, one: bool = False) -> None:
        self.name = name
        self._steps = steps
        self._one = one
        self._awaited: Any = None

    @property
    def is_ready(self) -> bool:
        return not isinstance(self._awaited, Future) or self._awaited.done()

    def step(self) -> bool:
        """Run to the next item; False at the end."""
        try:
            self._awaited = next(self._steps)
        except StopIteration:
            return False
        return not self._one


class ScheduledMailbox(TaskMailbox):
    """A mailbox whose takes let the scheduler's events happen. Confined to the scheduler's thread."""

    def __new__(cls, scheduler: SeededScheduler) -> ScheduledMailbox:
        """The arguments of the mailbox itself are its own."""
        return super().__new__(cls)

    def __init__(self, scheduler: SeededScheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def create_batch(self) -> bool:
        """As in any mailbox; events may happen before."""
        self._scheduler.interrupt()
        return super().create_batch()

    def try_take_from_batch(self) -> Mail | None:
        """As in any mailbox; events may happen before."""
        self._scheduler.interrupt()
        return super().try_take_from_batch()

    def try_take(self, p: int = -1, *, skip_deferrable: bool = False) -> Mail | None:
        """As in any mailbox; events may happen before."""
        self._scheduler.interrupt()
        return super().try_take(p, skip_deferrable=skip_deferrable)

    def take(
        self, p: int = -1, timeout: float | None = None, *, skip_deferrable: bool = False
    ) -> Mail | None:
        """As in any mailbox, but events happen until there is mail. Raises `Deadlock` when none is left."""
        while (mail := self.try_take(p, skip_deferrable=skip_deferrable)) is None:
            if self._scheduler.wait():
                continue
            if (mail := super().try_take(p, skip_deferrable=skip_deferrable)) is not None:
                return mail
            if timeout is not None:
                return None
            raise self._scheduler.deadlock(f"a take of priority {p} waits")
        return mail


def explore(scenario: Callable[[SeededScheduler], object], seeds: Iterable[int]) -> int:
    """Play a scenario in the order of every seed; how many of the orders were different.

    The scenario sets up its tasks and scripts, runs the scheduler and checks what has come out. Raises
    `ScheduleFailed`, with the seed, for the first order in which it raises.
    """
    traces = set()
    for seed in seeds:
        scheduler = SeededScheduler(seed)
        try:
            scenario(scheduler)
        except Exception as error:
            raise ScheduleFailed(seed, scheduler.trace) from error
        traces.add(tuple(scheduler.trace))
    return len(traces)


def _can_step(task: StreamTask) -> bool:
    if task.state is TaskState.CREATED:
        return True
    processor = task.processor
    return task.state is TaskState.RUNNING and (
        processor.is_default_action_available or processor.mailbox.has_mail()
    )


def _has_ended(task: StreamTask) -> bool:
    return task.state not in (TaskState.CREATED, TaskState.RUNNING)


def _shown(trace: tuple[str, ...]) -> str:
    skipped = f"{len(trace) - MAX_SHOWN_EVENTS} events, then " if len(trace) > MAX_SHOWN_EVENTS else ""
    return skipped + (", ".join(trace[-MAX_SHOWN_EVENTS:]) or "nothing")
