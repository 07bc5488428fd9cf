"""Records what the coordinator of a source does, in tasks and for micro-batches.

`recording` has every coordinator that is made meanwhile be a `RecordedCoordinator`; nothing of what ships
knows of it. Each event is a line of JSON, appended in one write to one file: the order of the lines is that
of the events, as a coordinator writes its own while it holds a lock. `spec.source_trace` reads them.

Of coordinators, by `source` (a number):

    begin      it has an enumerator; restored: it goes on from an earlier one
    pool       these splits wait, each with the place from which it is to be read; known: what is known
    open       a reader of a task is there, of the name `life`; opened: what that does is done
    give       a reader is sent splits; number: that of the message
    no more    it is told that no more come
    failed     it is told that nothing goes on
    request    it asks; finished, leave: see `SplitCoordinator`
    checkpoint a checkpoint was put together; complete: it counts
    notify     the service is told what is durable

Whoever runs readers adds `row`, `part` and `plan`, see `spec.source_trace`.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pillarbox.sources.enumerating import EnumeratorThread
from pillarbox.sources.enumerator import AddSplits, Failed, NoMoreSplits
from pillarbox.sources.split_coordinator import SplitCoordinator

from .recorded import append

CHANGING = ("serve", "finished", "assign", "no_more_splits")
"""Methods that change the pool or a log, and say nothing more."""

_numbers = itertools.count(1)


def place_of(split: Any, skip: int = 0) -> list[Any]:
    """A split by its name, and the place from which it is to be read."""
    return [split.split_id, (split.start or 0) + skip]


class _RecordedLink:
    """The way to a reader, for one that says what goes along."""

    def __init__(self, link: Any, say: Callable[..., None], subtask: int) -> None:
        self._link = link
        self._say = say
        self._subtask = subtask

    def deliver(self, message: Any) -> None:
        if isinstance(message, AddSplits):
            splits = [place_of(each, message.skip.get(each.split_id, 0)) for each in message.splits]
            self._say("give", subtask=self._subtask, splits=splits, number=message.number)
        elif isinstance(message, NoMoreSplits):
            self._say("no more", subtask=self._subtask)
        elif isinstance(message, Failed):
            self._say("failed", subtask=self._subtask)
        self._link.deliver(message)


class RecordedCoordinator(SplitCoordinator[Any]):
    """A coordinator that records into the file `path`, which `recording` gives it."""

    path: str

    def __init__(self, parallelism: int, *args: Any, **more: Any) -> None:
        self._guard = threading.RLock()
        self._number = next(_numbers)
        self.live: EnumeratorThread[Any, Any] | None = None
        self._waiting: Any = None
        self._ways: dict[Any, Any] = {}
        super().__init__(parallelism, *args, **more)

    def say(self, what: str, **words: Any) -> None:
        """Record an event of this coordinator."""
        append(self.path, what, source=self._number, **words)

    def begin(self, *args: Any) -> None:
        """Also say so."""
        (self.live,) = (each for each in args if isinstance(each, EnumeratorThread))
        self._waiting = None
        restored = any(each is not None and each is not self.live for each in args)
        self.say("begin", restored=restored)
        super().begin(*args)

    def open(self, link: Any, subtask: int, *args: Any) -> None:
        """Also say who is there, and what it is sent."""
        with self._observed("open", subtask=subtask, life=getattr(link, "life", "")):
            way: Any = _RecordedLink(link, self.say, subtask)
            self._ways[link] = way
            super().open(way, subtask, *args)
            self.say("opened", subtask=subtask)
            # For whoever waits for it.
            link.opened = True

    def said(self, link: Any, subtask: int, what: Callable[..., None], *args: Any) -> None:
        """Take what the reader behind `link` says for the link that stands for it here, and record it."""
        recorded = getattr(type(self), what.__name__)
        super().said(self._ways.get(link, link), subtask, recorded, *args)

    def request(self, subtask: int, *args: Any, **more: Any) -> None:
        """Also say who asks."""
        with self._observed("request", subtask=subtask):
            super().request(subtask, *args, **more)

    def leave(self, subtask: int, done: bool) -> None:
        """Also say who goes."""
        with self._observed("leave", subtask=subtask, done=done):
            super().leave(subtask, done)

    def snapshot(self, states: Any) -> Any:
        """Also say what is in the checkpoint."""
        with self._observed():
            found = super().snapshot(states)
            readers = {
                subtask: [place_of(each, state.skip.get(each.split_id, 0)) for each in state.splits]
                for subtask, state in found.readers.items()
            }
            waiting = [place_of(each.split, each.skip) for each in found.waiting]
            words = {"given": sorted(states), "waiting": waiting, "readers": readers}
            self.say("checkpoint", known=found.checkpoint, number=found.number, **words)
        return found

    def complete(self, number: int) -> None:
        """Also say that it counts."""
        with self._observed():
            super().complete(number)
            self.say("complete", number=number)

    def notify_committed(self, positions: Any) -> None:
        """Also say what is durable."""
        with self._observed("notify", positions=dict(positions)):
            super().notify_committed(positions)

    @contextmanager
    def _observed(self, what: str | None = None, **words: Any) -> Iterator[None]:
        """Around a step of the enumerator's thread."""
        with self._guard:
            self._say_pool()
            if what is not None:
                self.say(what, **words)
            try:
                yield
            finally:
                self._say_pool()

    def _say_pool(self) -> None:
        pending = getattr(self.live, "pending", None)
        if pending is not None and self.live is not None:
            waiting = sorted(place_of(each.split, each.skip) for each in pending.waiting())
            known = self.live.enumerator.checkpoint
            if (waiting, known) != self._waiting:
                self._waiting = waiting, known
                self.say("pool", waiting=waiting, known=known)


def _changing(name: str) -> Callable[..., Any]:
    def method(self: RecordedCoordinator, *args: Any, **more: Any) -> Any:
        with self._observed():
            return getattr(SplitCoordinator, name)(self, *args, **more)

    # A link says by this name what its reader says.
    method.__name__ = name
    return method


for _name in CHANGING:
    if hasattr(SplitCoordinator, _name):
        setattr(RecordedCoordinator, _name, _changing(_name))


@contextmanager
def recording(path: str | Path) -> Iterator[None]:
    """Have the coordinators that are made meanwhile record into `path`. In a process, one at a time."""
    recorded = type("Recorded", (RecordedCoordinator,), {"path": str(path)})
    modules = [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("pillarbox.")
        if getattr(module, "SplitCoordinator", None) is SplitCoordinator
    ]
    for module in modules:
        vars(module)["SplitCoordinator"] = recorded
    try:
        yield
    finally:
        for module in modules:
            vars(module)["SplitCoordinator"] = SplitCoordinator
