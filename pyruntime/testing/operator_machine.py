"""The operator machine: random lives of the operators of a task, judged by a small model of exactly-once.

One life is a real `StreamTask` on an event loop whose time the machine moves. It is cut off as a kill would
cut it: nothing is flushed, nothing is closed, its objects are left as they are. The next life is restored
from the last snapshot and reads the input on from there; what was emitted since then does not count.

Everything runs in the thread of the test runner.
"""

# Why lives are cut off in this process, and not by killing one. A process takes half a second to come up,
# and a machine needs some hundred lives to find what goes wrong in the third restart. What a kill leaves is
# what the snapshot and the output had: objects of a life that was cut off are kept, so that collecting them
# runs nothing of what they do at their end.
#
# Why what is due is computed from the input, and not by a second operator. A reference that runs rows
# through code of its own agrees with the same mistake; "each row once, in order, none past a watermark"
# needs none.
#
# Why calls have books. The output can be right although a row was called twice, and the bill for that is
# what a restart is judged by.
#
# Why a rule gives the event loop some turns, or as many as it needs. Only at rest is what comes next the
# same each time, so that a failure shrinks; only between turns does a snapshot meet a call that has been
# answered and not yet emitted.
#
# Why Hypothesis draws the operators of each life anew. A restored operator may have another capacity, and
# what holds for the same sizes only is found by a restart with others.

from __future__ import annotations

import asyncio
import inspect
import math
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pillarbox.task import InputStatus, Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointOptions, TaskSnapshot
from pillarbox.task.protocols import MAX_WATERMARK, Idleness, Watermark
from pillarbox.testing.clocks import FakeClock, VirtualTimeLoop
from pillarbox.testing.identity import Alike
from pillarbox.testing.suites import Disagreement
from pillarbox.testing.test_io import LimitedOutput, ReplayedInput

T = TypeVar("T")

TURNS = st.sampled_from([None, None, None, 0, 1, 2, 3])
"""Turns of the event loop after a step; None: until nothing is left to do at once."""

MAX_TURNS = 10_000
"""Turns of the event loop after which nothing may be left to do at once."""

FINISH_ROUNDS = 500
"""Rounds, of `FINISH_ROUND_S` seconds each, in which a task has to end once nothing holds it up."""

FINISH_ROUND_S = 10.0

TROUBLED_ROUNDS = 5
"""Rounds at the end in which calls fail, or are not answered, where the machine has decided so."""

TIME_TOLERANCE_S = 0.01

_abandoned: list[Any] = []
"""Coroutines of lives that were cut off: to collect one would run what it does at its end."""


class SnapshotFailed(Exception):
    """The error of an operator in a snapshot that is to fail."""


# -- the ends of the task --------------------------------------------------------------------------


class _Input(ReplayedInput):
    """Reads the machine's elements, one row by itself, and ends when the machine says so."""

    def __init__(self, machine: OperatorMachine, size: int) -> None:
        super().__init__(machine.elements, size)
        self._machine = machine
        self._more: Future[None] | None = None

    def batch(self, rows: list[Any]) -> Any:
        given = [self._machine.row(row) for row in rows]
        return given[0] if len(given) == 1 else super().batch(given)

    def at_end(self) -> InputStatus:
        return InputStatus.END_OF_INPUT if self._machine.input_has_ended else InputStatus.NOTHING_AVAILABLE

    def available(self) -> Future[None] | None:
        if self.position < len(self.elements) or self._machine.input_has_ended:
            return None
        self._more = Future()
        return self._more

    def notify(self) -> None:
        more, self._more = self._more, None
        if more is not None:
            more.set_result(None)


class _Output(LimitedOutput):
    """Keeps what comes. is_narrow: it has room for one batch, until `make_room` is called."""

    def __init__(self, machine: OperatorMachine, is_narrow: bool, room: int | None) -> None:
        super().__init__(1 if is_narrow else math.inf)
        self._machine = machine
        self.room = room

    def collect(self, record: Any) -> None:
        before = len(self.elements)
        super().collect(record)
        self.elements[before:] = map(self._machine.seen, self.elements[before:])

    def emitted_without_room(self, record: object) -> None:
        self._machine.disagree("collect", record, "nothing while the output has no room")

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        self._machine._cut(barrier.id)


# -- the service -----------------------------------------------------------------------------------


@dataclass(eq=False)
class ServiceCall:
    """A call of the service that has not ended: of one row, or of several."""

    uid: str
    numbers: list[int]
    began: float
    future: asyncio.Future[Any]
    is_cancelled: bool = False
    """The operator has given it up; what it still brings is late."""


@dataclass
class Books:
    """The history that counts: up to the last snapshot, and what has happened since it was restored.

    By the operator's uid and the row's number. failures: calls that failed. answers: what a call has given.
    spent: seconds in calls. retries: calls that have followed failed ones, by the failures before them.
    begun: by the clock of the event loop, the beginning of the first call, as if no time had passed between
    snapshot and restore, or earlier.
    """

    failures: Counter[tuple[str, int]] = field(default_factory=Counter)
    answers: dict[tuple[str, int], Any] = field(default_factory=dict)
    spent: defaultdict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    retries: set[tuple[str, int, int]] = field(default_factory=set)
    begun: dict[tuple[str, int], float] = field(default_factory=dict)


class _Cut(NamedTuple):
    """The output and the books at the barrier of a snapshot."""

    elements: list[Any]
    books: Books


class _Saved(NamedTuple):
    snapshot: bytes
    cut: _Cut


# -- the output that is due ----------------------------------------------------------------------


def _parts(elements: Iterable[Any]) -> list[list[Any]]:
    """Rows, and what travels between them, in turn: rows first."""
    parts: list[list[Any]] = [[]]
    for element in elements:
        if isinstance(element, (Watermark, Idleness)) is bool(len(parts) % 2):
            parts.append([])
        parts[-1].append(element)
    return parts


def _marks_agree(got: list[Any], due: list[Any], is_whole: bool) -> bool:
    """Watermarks and statuses between which no row came may be merged: the newest of each kind counts."""
    rest = iter(due)
    # A watermark and a status are tuples, which may be equal.
    in_order = all(any(type(mark) is type(other) and mark == other for other in rest) for mark in got)
    return in_order and (not is_whole or {type(m): m for m in got} == {type(m): m for m in due})


def agrees(got: Iterable[Any], due: Iterable[Any], *, ordered: bool, is_whole: bool) -> bool:
    """Return True if an output is what is due, or, unless `is_whole`, a beginning of it.

    No row passes a watermark or a status; between two of them `ordered` rows keep their order. Rows are
    hashable.
    """
    got_parts, due_parts = _parts(got), _parts(due)
    last = len(got_parts) - 1
    if last >= len(due_parts) or (is_whole and last + 1 < len(due_parts)):
        return False
    for place, (some, all_) in enumerate(zip(got_parts, due_parts, strict=False)):
        through = is_whole or place < last
        if place % 2:
            agree = _marks_agree(some, all_, through)
        elif ordered:
            agree = some == (all_ if through else all_[: len(some)])
        else:
            agree = Counter(some) == Counter(all_) if through else Counter(some) <= Counter(all_)
        if not agree:
            return False
    return True


# -- the machine -----------------------------------------------------------------------------------


class OperatorMachine(RuleBasedStateMachine):
    """Random lives of operators in a task. Subclass it, write `operators`, and have its `TestCase` run.

    The rules push rows, watermarks and idleness, let time pass, answer calls or have them fail, in any order,
    late too, take snapshots, some of which fail, cut
    the life off, restore it, and end the input. After each step the output that counts must be a beginning of
    what is due, and in the end all of it; the task must end. An operator that calls `service()` is also
    judged by its calls: none is made again that has an answer in the history that counts, and none beyond
    `max_attempts` and `max_retries`.

    A row is its number in the input, and the timestamp of a watermark is its own, unless `row` says
    otherwise. `Disagreement` says what is wrong. Confined to the thread of the test runner.
    """

    ordered: bool = True
    """True if rows leave in the order of the input; otherwise in any order between two watermarks."""

    alike: bool = False
    """True if all rows are equal: an operator that does not look into rows must know each by its place."""

    max_attempts: int | None = None
    """Calls of a row that may fail; None for any number."""

    max_retries: int | None = None
    """Calls that follow failed ones, of all rows together, in all lives; None for any number."""

    timeout: float | None = None
    """Seconds that all calls of a row may take, in all lives together; None for any time."""

    is_stubborn: bool = False
    """True if the service's calls go on when they are cancelled, and may be answered late."""

    failure: type[BaseException] = ConnectionError
    """The error of calls that fail."""

    # -- what a subclass says -----------------------------------------------------------------

    def operators(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Operator]:
        """The operators of a new life, from the input to the output, on the event loop `self.loop`.

        draw: gives a value of a strategy, for what may be another one in each life. What must not, such as
        `ordered`, is for the first life only: `self.lives` is 1 then.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must write `operators`")

    def row(self, number: int) -> Any:
        """The row that is read for a number of the input."""
        return Alike(number) if self.alike else number

    def expected(self, number: int) -> list[Any]:
        """The records that a row of the input gives, as `seen` makes them."""
        return [number]

    def seen(self, record: object) -> Any:
        """A hashable form of a record of the output, to be compared with `expected`."""
        return int(record) if isinstance(record, Alike) else record

    def answer(self, uid: str, number: int) -> Any:
        """The answer of the service for a row, another one for each call."""
        return [number, next(self._serial)]

    def number_of(self, row: int | Sequence[int]) -> int:
        """The number of a row that the service is called with: of the input, or an answer."""
        return int(row if isinstance(row, int) else row[0])

    def called(self, uid: str, number: int) -> None:
        """A row is about to be called. Raise or `disagree` if it must not be."""

    def crashed(self) -> None:
        """The life was cut off, and the next one has not begun. For what a subclass holds of it."""

    def help_finish(self) -> None:
        """One round at the end, in which nothing is to hold the task up any more."""

    # -- life ---------------------------------------------------------------------------------

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[Any] = []
        """The input: numbers of rows, `Watermark`s and `Idleness`."""
        self.input_has_ended = False
        self.lives = 0
        self.books = Books()
        self._clock = FakeClock()
        self._serial = iter(range(1, 2**60))
        self._checkpoint = 0
        self._faults: list[Disagreement] = []
        self._saved: _Saved | None = None
        self._cuts: dict[int, _Cut] = {}
        self._has_begun = self._has_failed = False

    @initialize(
        data=st.data(), is_stubborn=st.booleans(), ending=st.sampled_from(["answers", "errors", "silence"])
    )
    def begin(self, data: st.DataObject, is_stubborn: bool, ending: str) -> None:
        """Begin the first life. ending: of the calls that are left in the end."""
        self.is_stubborn = is_stubborn
        self._ending = ending
        self._begin_life(data)

    def _begin_life(self, data: st.DataObject) -> None:
        """Begin a life; where Hypothesis gives an example up in a draw, there is no life to be ended."""
        self._has_begun = False
        # No timer of an earlier life hears of this clock, which goes on where that life's has stopped.
        self._clock = FakeClock(self._clock())
        self.loop = VirtualTimeLoop(self._clock)
        try:
            self._make_life(data)
        except BaseException:
            # Whoever collects a loop that is open warns of it, in whatever test that is.
            self.loop.close()
            raise
        self._running = self.loop.create_task(self._live())
        self._has_begun = True

    def _make_life(self, data: st.DataObject) -> None:
        self.lives += 1
        self.loop.set_exception_handler(lambda _, context: self.disagree("loop", context, "no error"))
        self.calls: list[ServiceCall] = []
        """The calls of this life that have not ended, the oldest first."""
        cut = _Cut([], Books()) if self._saved is None else self._saved.cut
        self.books = deepcopy(cut.books)
        self._before = cut.elements
        self._cuts = {}
        self._input = _Input(self, data.draw(st.integers(1, 5), "rows of a batch"))
        self._output = _Output(
            self, data.draw(st.booleans(), "narrow output"), data.draw(st.sampled_from([None, None, 1, 2]))
        )
        chain = self.operators(partial(data.draw))
        self._last_operator = chain[-1]
        self._task = StreamTask(
            self._input, chain, self._output, name="machine", clock=self._clock, latency_interval=None
        )

    async def _live(self) -> None:
        if self._saved is not None:
            self._task.restore(pickle.loads(self._saved.snapshot))
        await self._task.run_async()

    def run(self, turns: int | None = None) -> None:
        """Give the event loop so many turns, without letting time pass; None: as many as it needs."""
        is_at_rest = self.loop.run_ready(MAX_TURNS if turns is None else turns)
        if turns is None and not is_at_rest:
            self.disagree("run", f"there is work after {MAX_TURNS} turns", "rest")

    def disagree(self, operation: str, got: object, expected: object) -> None:
        """Note that something is wrong, of which nobody hears who only raises in the task."""
        self._faults.append(Disagreement(operation, "", got, expected))

    def _cut(self, checkpoint_id: int) -> None:
        """The barrier of a checkpoint has come to the output."""
        now = self.loop.time()
        books = deepcopy(self.books)
        for call in self.calls:
            if not call.is_cancelled:
                for number in call.numbers:
                    books.spent[call.uid, number] += now - call.began
        # The next life's loop begins at 0.
        books.begun = {key: begun - now for key, begun in books.begun.items()}
        self._cuts[checkpoint_id] = _Cut([*self._before, *self._output.elements], books)

    # -- the service --------------------------------------------------------------------------

    def service(self, uid: str = "") -> Callable[[Any], Any]:
        """An async function of a row, whose calls the machine answers. uid: of the operator that calls."""

        async def call(row: int | Sequence[int]) -> Any:
            (answer,) = await self._call(uid, [self.number_of(row)])
            return answer

        return call

    def batch_service(self, uid: str = "") -> Callable[[list[Any]], Any]:
        """As `service`, of a list of rows."""

        async def call(rows: list[Any]) -> Any:
            return await self._call(uid, [self.number_of(row) for row in rows])

        return call

    async def _call(self, uid: str, numbers: list[int]) -> list[Any]:
        call = ServiceCall(uid, numbers, self.loop.time(), self.loop.create_future())
        for number in numbers:
            self._check_call(uid, number)
            self.books.begun.setdefault((uid, number), call.began)
        self.calls.append(call)
        while True:
            try:
                await asyncio.wait([call.future])
            except asyncio.CancelledError:
                self._spend(call)
                if not self.is_stubborn:
                    self.calls.remove(call)
                    raise
                call.is_cancelled = True
                continue
            break
        self.calls.remove(call)
        self._spend(call)
        error = call.future.exception()
        if error is not None:
            if not call.is_cancelled:
                self.books.failures.update((uid, number) for number in numbers)
            raise error
        answers: list[Any] = call.future.result()
        if not call.is_cancelled:
            self.books.answers.update(
                ((uid, number), answer) for number, answer in zip(numbers, answers, strict=True)
            )
        return answers

    def _check_call(self, uid: str, number: int) -> None:
        if (uid, number) in self.books.answers:
            answer = self.books.answers[uid, number]
            self.disagree("call", f"row {number} is called by {uid!r}", f"it has its answer, {answer!r}")
        failures = self.books.failures[uid, number]
        if self.max_attempts is not None and failures >= self.max_attempts:
            self.disagree("call", f"row {number} is called by {uid!r}", f"{failures} calls have failed")
        if failures:
            # A call that was running in a snapshot is made again, and does not count twice.
            self.books.retries.add((uid, number, failures))
            if self.max_retries is not None and len(self.books.retries) > self.max_retries:
                self.disagree("call", f"{len(self.books.retries)} retries", f"{self.max_retries} at most")
        self.called(uid, number)

    def _spend(self, call: ServiceCall) -> None:
        if call.is_cancelled:
            return
        for number in call.numbers:
            spent = self.books.spent[call.uid, number] + self.loop.time() - call.began
            self.books.spent[call.uid, number] = spent
            # A call of several rows goes on while one of them has time left.
            is_alone = len(call.numbers) == 1
            if is_alone and self.timeout is not None and spent > self.timeout + TIME_TOLERANCE_S:
                got = f"calls of row {number} by {call.uid!r} took {spent:g} s"
                self.disagree("timeout", got, f"{self.timeout:g} s at most")

    def complete(self, call: ServiceCall) -> None:
        """Have a call of the service end with its answers."""
        call.future.set_result([self.answer(call.uid, number) for number in call.numbers])

    def fail(self, call: ServiceCall) -> None:
        """Have a call of the service end with an error."""
        call.future.set_exception(self.failure(f"rows {call.numbers}"))

    # -- rules --------------------------------------------------------------------------------

    @precondition(lambda self: not self.input_has_ended)
    @rule(count=st.integers(1, 6), turns=TURNS)
    def push(self, count: int, turns: int | None) -> None:
        """Rows come."""
        self._push(count=count)
        self.run(turns)

    @precondition(lambda self: not self.input_has_ended)
    @rule(turns=TURNS)
    def push_watermark(self, turns: int | None) -> None:
        """A watermark comes."""
        self._push(Watermark(float(len(self.elements))))
        self.run(turns)

    @precondition(lambda self: not self.input_has_ended)
    @rule(idle=st.booleans(), turns=TURNS)
    def push_idleness(self, idle: bool, turns: int | None) -> None:
        """Word comes that nothing comes for a while, or that this is over."""
        self._push(Idleness(idle))
        self.run(turns)

    def _push(self, *marks: object, count: int = 0) -> None:
        self.elements.extend(marks)
        self.elements.extend(range(len(self.elements), len(self.elements) + count))
        self._input.notify()

    @precondition(lambda self: not self.input_has_ended and len(self.elements) > 8)
    @rule(turns=TURNS)
    def end_input(self, turns: int | None) -> None:
        """The input ends."""
        self.input_has_ended = True
        self._input.notify()
        self.run(turns)

    @rule(turns=st.integers(1, 3) | st.none())
    def turn(self, turns: int | None) -> None:
        """The event loop has its turn."""
        self.run(turns)

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 20.0]), turns=TURNS)
    def advance(self, seconds: float, turns: int | None) -> None:
        """Time passes."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        self.run(turns)

    def _open_calls(self) -> list[ServiceCall]:
        return [call for call in self.calls if not call.future.done()]

    @precondition(lambda self: self._has_begun and self._open_calls())
    @rule(data=st.data(), fails=st.booleans(), turns=TURNS)
    def answer_call(self, data: st.DataObject, fails: bool, turns: int | None) -> None:
        """A call of the service ends, late or not."""
        calls = self._open_calls()
        call = calls[data.draw(st.integers(0, len(calls) - 1), "call")]
        (self.fail if fails else self.complete)(call)
        self.run(turns)

    @precondition(lambda self: self._has_begun and len(self._open_calls()) > 1)
    @rule(turns=TURNS)
    def answer_calls_backwards(self, turns: int | None) -> None:
        """All calls of the service end, the newest first."""
        for call in reversed(self._open_calls()):
            self.complete(call)
        self.run(turns)

    @precondition(lambda self: self._has_begun and not self._output.is_available)
    @rule(turns=TURNS)
    def make_room(self, turns: int | None) -> None:
        """The output has room again."""
        self._output.make_room()
        self.run(turns)

    @rule(aligned=st.booleans(), is_lost=st.sampled_from([False, False, False, True]), turns=TURNS)
    def snapshot(self, aligned: bool, is_lost: bool, turns: int | None) -> None:
        """A snapshot is taken. is_lost: it is not kept, and the task hears that it will not be complete."""
        self._snapshot(aligned, is_lost)
        self.run(turns)

    def _snapshot(self, aligned: bool, is_lost: bool) -> Future[TaskSnapshot]:
        self._checkpoint += 1
        task, number = self._task, self._checkpoint

        def taken(future: Future[TaskSnapshot]) -> None:
            if future.exception() is not None:
                return
            if is_lost:
                task.notify_checkpoint_aborted_async(number)
                return
            try:
                # A copy: what the operators do later must not change it.
                self._saved = _Saved(pickle.dumps(future.result()), self._cuts[number])
            except Exception as error:
                # The future only logs it.
                self.disagree("snapshot", error, "a snapshot of which bytes can be made")
            task.notify_checkpoint_complete_async(number)

        future = task.trigger_checkpoint_async(
            number, CheckpointOptions(aligned=aligned), timestamp=self._clock()
        )
        future.add_done_callback(taken)
        return future

    @rule()
    def snapshot_now(self) -> None:
        """A snapshot is taken while nothing is left to do at once: it must not wait or be declined."""
        self.run()
        if self._running.done():
            return
        future = self._snapshot(False, False)
        self.run()
        # The end of the output may be that of a task that waits for nothing but calls it has cancelled.
        is_over = bool(self._output.elements) and self._output.elements[-1] == Watermark(MAX_WATERMARK)
        if not is_over and (not future.done() or future.exception() is not None):
            got = future.exception() if future.done() else "none yet"
            self.disagree("snapshot", got, "a snapshot at once")

    @rule(turns=TURNS)
    def snapshot_that_fails(self, turns: int | None) -> None:
        """The last operator raises when it has given its state: the task goes on as if nothing had been."""
        operator: Any = self._last_operator
        state_of = operator.snapshot_state

        def fail(barrier: CheckpointBarrier) -> Any:
            state_of(barrier)
            raise SnapshotFailed

        self.run()
        operator.snapshot_state = fail
        future = self._snapshot(False, False)
        self.run()
        del operator.snapshot_state
        if future.done() and future.exception() is None and not self._running.done():
            self.disagree("snapshot", "a snapshot of an operator that raised", "none")
        self.run(turns)

    @precondition(lambda self: self._has_begun and not self._running.done())
    @rule(data=st.data(), after_snapshot=st.booleans(), turns=TURNS)
    def crash(self, data: st.DataObject, after_snapshot: bool, turns: int | None) -> None:
        """The life is cut off, and the next one begins. after_snapshot: right after a snapshot."""
        if after_snapshot:
            self.snapshot_now()
            if self._running.done():
                return
        self._judge(is_whole=False)
        self._cut_off()
        self.crashed()
        self._begin_life(data)
        self.run(turns)

    @precondition(lambda self: self._has_begun and self._open_calls())
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 1.0, 3.0]), fails=st.booleans())
    def crash_in_trouble(self, data: st.DataObject, seconds: float, fails: bool) -> None:
        """Calls take time, or fail, and the life is cut off right after a snapshot of that."""
        self.advance(seconds, None)
        calls = self._open_calls()
        if fails and calls:
            self.fail(calls[0])
            self.run()
        if not self._running.done():
            self.crash(data, True, None)

    def _cut_off(self) -> None:
        """End the life as a kill would: nothing is flushed, and nothing is closed."""
        for task in asyncio.all_tasks(self.loop):
            # It would report, when it is collected, that it has not ended.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            # Or every later look at all tasks goes through those of all lives.
            asyncio.tasks._unregister_task(task)
            coroutine: Any = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                # Nothing of it has run, and Python would warn of that.
                coroutine.close()
            _abandoned.append(task)
        self.loop.close()

    # -- the judgement ------------------------------------------------------------------------

    def _due(self) -> list[Any]:
        due: list[Any] = []
        for element in self.elements:
            due.extend([element] if isinstance(element, (Watermark, Idleness)) else self.expected(element))
        if self.input_has_ended:
            due.append(Watermark(MAX_WATERMARK))
        return due

    @property
    def counted_output(self) -> list[Any]:
        """The output that counts: up to the snapshot that this life was restored from, and since then."""
        return [*self._before, *self._output.elements]

    @invariant()
    def output_is_a_beginning_of_what_is_due(self) -> None:
        """Compare what has come out with the model."""
        if self._has_begun:
            self._judge(is_whole=False)

    def _judge(self, is_whole: bool) -> None:
        # An error of the task is the cause of what else is wrong.
        failed, self._has_failed = self._has_failed, True
        if self._running.done():
            self._running.result()
            is_whole = True
        if self._faults:
            raise self._faults[0]
        got, due = self.counted_output, self._due()
        if not agrees(got, due, ordered=self.ordered, is_whole=is_whole):
            raise Disagreement("output", "", got, due)
        self._has_failed = failed

    def finish(self) -> None:
        """Let everything come out, and check that it was all that is due."""
        self.input_has_ended = True
        self._input.notify()
        for round_ in range(FINISH_ROUNDS):
            self.run()
            self.help_finish()
            self._output.make_room()
            is_answered = self._ending == "answers" or round_ >= TROUBLED_ROUNDS
            for call in self._open_calls():
                if is_answered:
                    self.complete(call)
                elif self._ending == "errors":
                    self.fail(call)
            self.run()
            if self._running.done():
                break
            self._judge(is_whole=False)
            self.loop.run_until_complete(asyncio.sleep(FINISH_ROUND_S))
        else:
            self.disagree("end", "the task runs on", "it ends, as nothing holds it up")
        self._judge(is_whole=True)

    def teardown(self) -> None:
        """Let the last life come to its end, unless a step has failed."""
        if not self._has_begun:
            return
        try:
            if not self._has_failed:
                self.finish()
        finally:
            self._cut_off()
