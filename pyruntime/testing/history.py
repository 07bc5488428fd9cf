"""Histories: which thread did what, with which outcome, and what was before what.

A `Recorder` stands in front of a subject and notes every operation. It is thread-safe and takes no lock while
an operation runs: each thread has a list of its own, and the order between threads is that of the monotonic
clock.
"""

# Why each thread has a list of its own. A list with a lock would order the threads by that lock, and the
# races that are sought would be gone from what is recorded. The clock alone orders them; equal readings
# make operations overlap, which hides an order and never invents one.
#
# Why the subject's stand-in looks its methods up once. A history of a fast subject is only of use if
# recording is short beside the operation, or no two of them ever overlap.
#
# Why the pause is the caller's. Under a GIL two operations overlap only where one gives it up; a recorder
# that slept by itself would change the timing of a subject that has races of its own.

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pillarbox.testing.models import Model, Raised


class Event(NamedTuple):
    """One operation of one thread. It was before another if its `end` is less than the other's `start`."""

    thread: str
    operation: str
    arguments: tuple[Any, ...]
    """All of them, by position, default values included."""
    result: Any
    """The value that was returned, or `Raised`."""
    start: int
    end: int
    """Tickets: they count the moments at which operations began and ended, over all threads."""


class _Note(NamedTuple):
    operation: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any
    start: int
    end: int


class Recorder:
    """A subject's stand-in: has its methods, and notes every call. Thread-safe as far as the subject is.

    subject: what is recorded. model: its model's class, which knows the operations and their arguments.

    pause: called between the beginning of an operation and the call of the subject, and between its return
    and the end. One that lets other threads run (`time.sleep(0)`, now and then) makes operations overlap that
    would not under a GIL.

    An attribute that is not an operation of the model is the subject's own. Call `events` when all
    threads have come to rest.
    """

    def __init__(
        self,
        subject: Any,
        model: type[Model],
        *,
        pause: Callable[[], object] | None = None,
    ) -> None:
        self._subject = subject
        self._model = model
        self._pause = pause or _no_pause
        self._logs: list[tuple[str, list[_Note]]] = []
        self._lock = threading.Lock()
        self._mine = threading.local()

    def __getattr__(self, operation: str) -> Any:
        method = getattr(self._subject, operation)
        if operation not in self._model.operations or not callable(method):
            return method
        recorded = self._recorded(operation, method)
        # The next time there is no need to come here.
        setattr(self, operation, recorded)
        return recorded

    def __len__(self) -> int:
        length: int = self._recorded("len", self._subject.__len__)()
        return length

    def events(self) -> list[Event]:
        """Everything that was recorded, in the order of the beginnings."""
        with self._lock:
            logs = [(name, list(notes)) for name, notes in self._logs]
        moments = sorted({moment for _, notes in logs for note in notes for moment in (note.start, note.end)})
        ticket = {moment: number for number, moment in enumerate(moments)}
        found = [
            Event(
                name,
                note.operation,
                self._model.bind(note.operation, note.arguments, note.keywords),
                note.result,
                ticket[note.start],
                ticket[note.end],
            )
            for name, notes in logs
            for note in notes
        ]
        return sorted(found, key=lambda event: (event.start, event.end))

    def _log(self) -> list[_Note]:
        log: list[_Note] | None = getattr(self._mine, "log", None)
        if log is None:
            log = self._mine.log = []
            name = threading.current_thread().name
            with self._lock:
                taken = Counter(existing.partition("#")[0] for existing, _ in self._logs)[name]
                self._logs.append((f"{name}#{taken + 1}" if taken else name, log))
        return log

    def _recorded(self, operation: str, method: Callable[..., Any]) -> Callable[..., Any]:
        # Perf_counter is the monotonic clock that is the finest on every platform. Equal readings make
        # operations overlap, which can only hide an order, never invent one.
        clock = time.perf_counter_ns
        pause = self._pause

        def call(*arguments: Any, **keywords: Any) -> Any:
            log = self._log()
            arguments = tuple(_kept(argument) for argument in arguments)
            outcome: Any = Raised("nothing")
            start = clock()
            pause()
            try:
                outcome = result = method(*arguments, **keywords)
                return result
            except BaseException as error:
                outcome = Raised(type(error).__name__)
                raise
            finally:
                pause()
                end = clock()
                log.append(_Note(operation, arguments, keywords, _kept(outcome), start, end))

        return call


def _no_pause() -> None:
    pass


def _kept(value: Any) -> Any:
    """A value that nobody changes afterwards: what can be read once becomes a tuple, a list is copied."""
    if isinstance(value, Iterator):
        return tuple(value)
    return list(value) if type(value) is list else value


def numbered_handles(events: list[Event]) -> list[Event]:
    """The history of a result queue with handles as `QueueModel` has them: numbers of attempts.

    For histories whose queue was made before them and is restored in none of them; its owner's events tell
    the numbers. A handle that the owner never got becomes 0.
    """
    numbers: dict[Any, int] = {}
    made = 0
    for event in events:
        if event.operation in ("put", "put_watermark", "renew") and not isinstance(event.result, Raised):
            made += 1
            if event.operation != "put_watermark":
                numbers[event.result] = made
    renamed = []
    for event in events:
        if event.operation in ("complete", "renew"):
            handle = numbers.get(event.arguments[0], 0)
            event = event._replace(arguments=(handle, *event.arguments[1:]))
        if event.operation in ("put", "renew") and not isinstance(event.result, Raised):
            event = event._replace(result=numbers[event.result])
        renamed.append(event)
    return renamed
