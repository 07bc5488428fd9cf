"""A source as the input of a task, for tests: the coordinator's end, a reader without a thread, the task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from pillarbox.sources import Fetched, SourceInput
from pillarbox.sources.enumerator import AddSplits, Message, NoMoreSplits, ReaderState, SourceEvent
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.task import Operator, StreamTask
from pillarbox.task.protocols import Idleness, TaskState, Watermark
from pillarbox.testing.test_io import CollectedOutput
from tests.sources.unit.number_source import LONG, Numbers, Range


class Link:
    """The coordinator's end in a test: gives a split for each request, from a list."""

    def __init__(self, splits: list[Range] | None = None, *, answer: bool = True) -> None:
        self.waiting = [] if splits is None else list(splits)
        self.answer = answer
        self.said: list[Any] = []
        self.state: ReaderState[Range] | None = None
        self.receive: Callable[[Message[Range]], None] | None = None
        self.first: tuple[Range, ...] = ()
        self.skip: dict[str, int] = {}
        self.given = 0
        self.messages: list[AddSplits[Range]] = []
        self.requests = 0
        self.ended: list[str] = []
        self.reports: list[dict[str, float | None]] = []
        self.closed: list[bool] = []

    def tell(self, message: Message[Range]) -> None:
        assert self.receive is not None
        self.receive(message)

    def give(self, *splits: Range, skip: Mapping[str, int] | None = None) -> None:
        self.given += 1
        self.messages.append(AddSplits(splits, self.given, skip or {}))
        self.tell(self.messages[-1])

    def open(self, receive: Callable[[Message[Any]], None], state: ReaderState[Range] | None = None) -> None:
        self.receive, self.state = receive, state
        if self.first:
            self.give(*self.first, skip=self.skip)

    def request_split(self) -> None:
        self.requests += 1
        if self.waiting:
            self.give(self.waiting.pop(0))
        elif self.answer:
            self.tell(NoMoreSplits())

    def send(self, event: SourceEvent) -> None:
        self.said.append(event)

    def report(self, watermarks: Mapping[str, float | None]) -> None:
        self.reports.append(dict(watermarks))

    def finished(self, split_ids: Collection[str]) -> None:
        self.ended.extend(split_ids)

    def close(self, done: bool = False) -> None:
        self.closed.append(done)


class Pass(Operator):
    uid = "pass"

    def process(self, record: Any) -> None:
        self.output.collect(record)


class Running:
    """A task with a source, in the thread of the test."""

    def __init__(self, input: SourceInput[Range]) -> None:
        self.input = input
        self.output = CollectedOutput()
        self.task = StreamTask(input, [Pass()], self.output)

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self.task.state in (TaskState.CREATED, TaskState.RUNNING)
            if not self.task.run_step():
                woken = threading.Event()
                if not condition() and self.task.processor.mailbox.arm_wakeup(woken.set):
                    assert woken.wait(LONG)

    def settle(self) -> None:
        """Until it waits for something."""
        while self.task.run_step():
            continue

    def rows(self, count: int) -> list[Any]:
        self.until(lambda: len(self.output.records) >= count)
        return self.output.records

    @property
    def marks(self) -> list[Any]:
        return [each for each in self.output.elements if isinstance(each, (Watermark, Idleness))]


class Batches(SourceReader[Range]):
    """A reader without a thread: gives what a test has put, but of splits that are paused."""

    def __init__(self, *fetched: Fetched) -> None:
        self.waiting = list(fetched)
        self.paused: set[str] = set()
        self.events: list[SourceEvent] = []
        self.orders: list[Any] = []
        self.future: Any = None

    def poll(self) -> Fetched | None:
        # What breaks the contract of readers is given too.
        at = next((at for at, each in enumerate(self.waiting) if not self._is_paused(each)), None)
        return None if at is None else self.waiting.pop(at)

    def _is_paused(self, fetched: Any) -> bool:
        return isinstance(fetched, Fetched) and fetched.split_id in self.paused

    def put(self, *fetched: Fetched) -> None:
        self.waiting.extend(fetched)
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def available(self) -> Any:
        if not all(map(self._is_paused, self.waiting)):
            return None
        if self.future is None or self.future.done():
            self.future = Future()
        return self.future

    def add_splits(self, splits: Any) -> None:
        self.orders.append(("add", [split.split_id for split in splits]))

    def pause_or_resume_splits(self, pause: Any, resume: Any) -> None:
        self.paused = self.paused.union(pause).difference(resume)
        if pause or resume:
            self.orders.append((list(pause), list(resume)))

    def handle_source_event(self, event: SourceEvent) -> None:
        self.events.append(event)

    def splits(self) -> list[Range]:
        return []

    def close(self) -> None:
        pass


class With(Numbers):
    """The source that has this reader."""

    def __init__(self, reader: SourceReader[Range], *splits: Range) -> None:
        super().__init__(splits or [Range("s")])
        self.reader = reader
        self.context: ReaderContext | None = None

    def create_reader(self, context: ReaderContext) -> SourceReader[Range]:
        self.context = context
        return self.reader
