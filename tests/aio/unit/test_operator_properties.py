"""The operator under random rows, options and ends, in virtual time: what holds whatever happens.

Every row follows a script: what each of its attempts takes and how it ends. The script does not say when a
row gets its slot, so what is checked is what must hold for any order of the slots.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Batch, Budget, Buffer, CallFailed, CallTimeout, Dedupe, Options, Rate, Retry, Timeout
from pillarbox.aio import async_wait as operator_module
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.calls import Call, Chunk
from pillarbox.aio.errors import Failed
from pillarbox.aio.limits.rate import LocalLimiter
from pillarbox.aio.options import UNSET
from pillarbox.aio.policies import load as load_module
from pillarbox.aio.sizes import CALL_BYTES, size_of
from pillarbox.aio.stages import Stage
from pillarbox.aio.task_run import TaskRun
from pillarbox.kernel import OrderedQueue, UnorderedQueue
from pillarbox.task import InputStatus
from pillarbox.task.protocols import MAX_WATERMARK, RowBatch, TaskOutput
from pillarbox.testing.clocks import VirtualTimeLoop
from tests.aio.virtual import HOUR, Job, again, play
from tests.search import examples


@dataclass(frozen=True)
class Attempt:
    """The course of one attempt: its seconds, and a result, an error, or one that is not retried."""

    seconds: float
    end: str


@dataclass(frozen=True)
class Row:
    key: int
    attempts: tuple[Attempt, ...]


Item: TypeAlias = tuple[int, Row]
Items: TypeAlias = list[Item]

ROWS_OF_LOT = 10


@dataclass(frozen=True)
class Answer:
    """A result that holds bytes."""

    number: int
    content: bytes


@dataclass
class Seen:
    """The calls that the function saw."""

    running: int = 0
    most: int = 0
    begun: Counter[int] = field(default_factory=Counter)
    started: dict[int, float] = field(default_factory=dict)
    last: dict[int, str] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    """Bytes of each row as its source says, None for a row that is to be weighed, and of each result."""

    row: int | None = 0
    result: int = 0
    is_held: bool = False
    """True while the sink holds its last result."""


class Fatal(Exception):
    """An error that is not retried."""


class Collecting:
    """An output that keeps what it gets, and when. It holds its last chunk, or nothing."""

    is_available = True
    has_ended = False
    held_bytes = 0

    def __init__(self, loop: VirtualTimeLoop, load: Load) -> None:
        self.loop = loop
        self.load = load
        self.results: Chunk = []
        self.times: list[float] = []
        self.ended = False
        self.error: BaseException | None = None

    def collect(self, batch: RowBatch) -> None:
        results, held = batch.rows, batch.held_bytes
        assert not self.ended
        weights = [weight_of(call.row, self.load) + result_bytes(result) for call, result in results]
        assert [call.held for call, _ in results] == weights
        assert held == sum(weights)
        self.held_bytes = held if self.load.is_held else 0
        self.results.extend(results)
        self.times.extend([self.loop.time()] * len(results))

    def call_when_room(self, wake: Any) -> None:
        raise AssertionError("there is always room")

    def emit_watermark(self, timestamp: float) -> None:
        self.has_ended = timestamp == MAX_WATERMARK

    def emit_barrier(self, barrier: Any) -> None:
        pass

    def finish(self) -> None:
        assert not self.ended
        self.ended = True

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.finish()


class Lots:
    """An input of batches of `ROWS_OF_LOT` rows. No row may be admitted for which `max_bytes` has no room."""

    def __init__(self, items: Items, load: Load, sink: Collecting, max_bytes: int) -> None:
        self._lots = [items[at : at + ROWS_OF_LOT] for at in range(0, len(items), ROWS_OF_LOT)]
        self._load = load
        self._sink = sink
        self._most = max_bytes
        self._given: list[Item] = []
        # In the turn of the event loop in which rows are admitted: what was held before.
        self._before: int | None = None

    def emit_next(self, output: TaskOutput) -> InputStatus:
        if not self._lots:
            return InputStatus.END_OF_INPUT
        output.collect(RowBatch(self._lots.pop(0), self._load.row))
        return InputStatus.MORE_AVAILABLE

    def available(self) -> None:
        return None

    def admit(self, item: Item) -> None:
        self._check(item)
        self._given.append(item)

    def _check(self, item: Item) -> None:
        emitted = {call.row[0] for call, _ in self._sink.results}
        window = [weight_of(other, self._load) for other in self._given if other[0] not in emitted]
        if self._before is None:
            self._before = self._sink.held_bytes if window else 0
            self._sink.loop.call_soon(self._turned)
            # One row is let in whatever it weighs, where nothing is held.
            assert not window or sum(window) + self._before < self._most or not self._load.row
        # The weight of a row that is weighed is not known before.
        weight = self._load.row or 0
        assert not window or sum(window) + weight + (self._before if weight else 0) <= self._most

    def _turned(self) -> None:
        self._before = None

    def close(self) -> None:
        self._lots = []


def weight_of(item: Item, load: Load) -> int:
    return size_of(item) if load.row is None else load.row


def result_bytes(result: Any) -> int:
    """The bytes of a result; those that hold next to nothing count none."""
    return size_of(result) + CALL_BYTES if type(result) in (Answer, str) else 0


def number_of(result: Any) -> Any:
    """The row that a result is of, if it is one of a call."""
    return result.number if type(result) is Answer else result


SECONDS = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, 10.0])
ATTEMPT = st.builds(Attempt, SECONDS, st.sampled_from(["result", "result", "error", "fatal"]))
ROWS = st.lists(
    st.builds(Row, st.integers(0, 3), st.lists(ATTEMPT, min_size=1, max_size=4).map(tuple)),
    max_size=25,
)
OPTIONS = st.fixed_dictionaries(
    {
        "ordered": st.booleans(),
        "capacity": st.integers(1, 5),
        "errors": st.sampled_from(["null", "column", "drop", "fail"]),
        # So few that a window of these results is not light: each is weighed.
        "buffer": st.builds(Buffer, st.none(), st.integers(1, 5000)),
    },
    optional={
        "timeout": st.builds(
            Timeout,
            st.sampled_from([None, 0.05, 0.7, 2.0, 20.0]),
            attempt=st.sampled_from([None, 0.05, 0.7, 2.0]),
            fallback=st.sampled_from([UNSET, "in time"]),
        ),
        "retry": st.builds(
            Retry,
            attempts=st.integers(1, 4),
            initial=st.sampled_from([0.0, 0.3, 1.0]),
            on=st.just((ConnectionError, TimeoutError)),
        ),
    },
)
LOADS = st.builds(
    Load, st.sampled_from([None, 0, 1, 100, 1000]), st.sampled_from([0, 50, 2000]), st.booleans()
)


class Handles:
    """The handles that a result queue gives for the attempts of each row."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.admit: Callable[[Item], None] = lambda item: None
        self.of: dict[int, list[int]] = {}
        self.queue: Any = None
        for kind in (OrderedQueue, UnorderedQueue):
            patched.setattr(operator_module, kind.__name__, partial(self._watched, kind))

    def _watched(self, kind: Any, capacity: int, *, owner_completes: bool) -> Any:
        handles, admit = self.of, lambda item: self.admit(item)

        class Watched(kind):  # type: ignore[misc]
            def put(self, call: Call) -> int:
                admit(call.row)
                handle: int = super().put(call)
                handles[call.row[0]] = [handle]
                return handle

            def renew(self, handle: int) -> int:
                new: int = super().renew(handle)
                next(given for given in handles.values() if given[-1] == handle).append(new)
                return new

        self.queue = Watched(capacity, owner_completes=owner_completes)
        return self.queue

    def complete_earlier(self, number: int) -> list[bool]:
        """Give the row a result under the handle of each attempt before the present one: if any takes it."""
        return [self.queue.complete(handle, "of an earlier attempt") for handle in self.of[number][:-1]]


def run(
    rows: list[Row], options: Options, stop_at: float | None = None, load: Load = Load()
) -> tuple[Collecting, Seen, AsyncWaitOperator, VirtualTimeLoop]:
    """Carry the rows through an operator; returns when it has ended."""
    seen = Seen()
    with closing(VirtualTimeLoop()) as loop, pytest.MonkeyPatch.context() as patched:
        handles = Handles(patched)
        sink = Collecting(loop, load)
        max_bytes = options.buffer.max_bytes
        assert max_bytes is not None
        source = Lots([*enumerate(rows)], load, sink, max_bytes)
        handles.admit = source.admit

        async def fn(item: Item) -> Any:
            number, row = item
            seen.started.setdefault(number, loop.time())
            attempt = row.attempts[min(seen.begun[number], len(row.attempts) - 1)]
            seen.begun[number] += 1
            assert len(handles.of[number]) == seen.begun[number], "each attempt has a handle of its own"
            assert not any(handles.complete_earlier(number)), "an answer to an earlier attempt counts"
            seen.times.append(loop.time())
            seen.last[number] = "hangs"
            seen.running += 1
            seen.most = max(seen.most, seen.running)
            try:
                await asyncio.sleep(attempt.seconds)
            finally:
                seen.running -= 1
            seen.last[number] = attempt.end
            if attempt.end == "error":
                raise ConnectionError(number)
            if attempt.end == "fatal":
                raise Fatal(number)
            return Answer(number, bytes(load.result)) if load.result else number

        def gate(rate: Any, max_calls: Any, max_cost: Any, *_: Any, **__: Any) -> LocalLimiter | None:
            limited = not (rate is max_calls is max_cost is None)
            return LocalLimiter(rate, max_calls, max_cost, loop.time) if limited else None

        with mock.patch.object(load_module, "open_limiter", gate):
            run = TaskRun(
                [Stage(fn, options)],
                source,
                sink,
                loop=loop,
                context=contextvars.copy_context(),
            )

        async def main() -> None:
            run.start()
            if stop_at is not None:
                loop.call_at(stop_at, lambda: None if run.ended.done() else run.stop())
            await run.ended

        # The operator takes its mailbox for the thread, not for a task.
        loop.run_until_complete(main())
        leftover = asyncio.all_tasks(loop)
        assert not leftover, leftover
        stopping = 0 if stop_at is None or loop.time() > stop_at else 1
        assert loop.armed_timers <= stopping, "a timer is left behind"
        return sink, seen, run.operators[0], loop


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """No word about each of thousands of rows that fail."""
    log = logging.getLogger("pillarbox")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


@pytest.mark.contract
@settings(max_examples=examples(200))
@given(rows=ROWS, given_options=OPTIONS, load=LOADS)
def test_every_row_has_one_outcome_within_its_limits(
    rows: list[Row], given_options: dict[str, Any], load: Load
) -> None:
    options = Options(**given_options)
    sink, seen, operator, _ = run(rows, options, load=load)
    assert seen.most <= options.capacity
    assert seen.running == 0
    statistics = operator.statistics()
    assert statistics.calls == sum(seen.begun.values())
    attempts = options.retry.attempts if options.retry is not None else 1
    for number, begun in seen.begun.items():
        assert begun <= attempts, f"row {number}: {begun} attempts"
    if sink.error is not None:
        if options.errors.mode != "fail" or not isinstance(sink.error, CallFailed | CallTimeout):
            raise sink.error
        return
    numbers = [call.row[0] for call, _ in sink.results]
    assert sorted(numbers) == list(range(len(rows))), "every row once"
    if options.ordered:
        assert numbers == sorted(numbers)
    for (call, result), emitted in zip(sink.results, sink.times, strict=True):
        check_outcome(call.row[0], result, emitted, seen, options)
    failures = sum(type(result) is Failed for _, result in sink.results)
    assert statistics.errors == failures
    assert statistics.rows_in == statistics.results == len(rows)
    assert statistics.in_flight == statistics.waiting == statistics.finished_waiting == 0
    assert statistics.held_bytes == 0
    # A row that waits for its retry may time out.
    assert 0 <= statistics.retries - (statistics.calls - len(seen.begun)) <= statistics.timeouts
    assert statistics.latency.measurements <= statistics.calls
    assert statistics.late == statistics.abandoned == 0


def check_outcome(number: int, result: Any, emitted: float, seen: Seen, options: Options) -> None:
    total = options.timeout.total
    timed = total if total is not None else float("inf")
    if type(result) is Failed:
        kind = result.info.type
        assert result.info.attempts == seen.begun[number]
        if kind == "CallTimeout":
            assert options.timeout.fallback is UNSET
        else:
            assert (kind, seen.last[number]) in {("ConnectionError", "error"), ("Fatal", "fatal")}
    elif result == "in time":
        assert options.timeout.fallback == "in time"
    else:
        assert number_of(result) == number, "a row has another row's result"
        assert seen.last[number] == "result"
        if not options.ordered:
            assert emitted <= seen.started[number] + timed + 1e-6


@pytest.mark.contract(
    "No row is let in beyond max_bytes, whether rows are weighed or their source tells their weight.",
    convicts=[
        "rows_weigh_nothing",
        "rows_beyond_max_bytes",
        "first_rows_beyond_max_bytes",
        "weighed_rows_beyond_max_bytes",
        "bytes_of_output_forgotten",
        "bytes_stay_held",
        "result_weighs_nothing_in_output",
    ],
)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("row_bytes", [None, 30, 100, 400])
def test_no_row_is_let_in_beyond_max_bytes(row_bytes: int | None, ordered: bool) -> None:
    rows = [Row(0, (Attempt(number * 7 % 5 / 10, "result"),)) for number in range(24)]
    for result_bytes, is_held, max_bytes in itertools.product((0, 50, 200), (True, False), (100, 333, 1400)):
        options = Options(capacity=4, buffer=Buffer(max_bytes=max_bytes), ordered=ordered)
        sink, _, operator, _ = run(rows, options, load=Load(row_bytes, result_bytes, is_held))
        if sink.error is not None:
            raise sink.error
        assert len(sink.results) == len(rows)
        assert operator.statistics().held_bytes == 0


@pytest.mark.contract
@given(rows=ROWS, given_options=OPTIONS, stop_at=st.floats(0, 20), load=LOADS)
def test_a_stopped_operator_emits_nothing_more_and_leaves_nothing(
    rows: list[Row], given_options: dict[str, Any], stop_at: float, load: Load
) -> None:
    sink, seen, _, _ = run(rows, Options(**given_options), stop_at, load)
    assert sink.ended
    assert seen.running == 0
    numbers = [call.row[0] for call, _ in sink.results]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.contract
@given(rows=ROWS, given_options=OPTIONS, memo=st.integers(0, 3), load=LOADS)
def test_equal_rows_share_a_call_and_get_equal_results(
    rows: list[Row], given_options: dict[str, Any], memo: int, load: Load
) -> None:
    options = Options(
        **{**given_options, "errors": "null"}, dedupe=Dedupe(lambda item: item[1].key, memo=memo)
    )
    sink, seen, operator, _ = run(rows, options, load=load)
    if sink.error is not None:
        raise sink.error
    assert sorted(call.row[0] for call, _ in sink.results) == list(range(len(rows)))
    statistics = operator.statistics()
    assert statistics.shared == len(rows) - len(seen.begun)
    for call, result in sink.results:
        if type(number_of(result)) is int:
            assert rows[number_of(result)].key == call.row[1].key, "a result of a row that is not equal"


@pytest.mark.contract
@given(
    rows=ROWS,
    given_options=OPTIONS,
    per_second=st.sampled_from([0.5, 2.0, 10.0]),
    burst=st.sampled_from([0.1, 1.0, 3.0]),
)
def test_no_more_calls_begin_than_the_rate_lets_through(
    rows: list[Row], given_options: dict[str, Any], per_second: float, burst: float
) -> None:
    rate = Rate(per_second=per_second, burst=burst)
    options = Options(**{**given_options, "errors": "null"}, rate=rate)
    sink, seen, operator, _ = run(rows, options)
    assert sorted(call.row[0] for call, _ in sink.results) == list(range(len(rows)))
    assert operator.statistics().rate_granted == len(seen.times)
    at_once = max(1.0, per_second * burst)
    for first, began in enumerate(seen.times):
        for last in range(first, len(seen.times)):
            most = at_once + per_second * (seen.times[last] - began)
            assert last - first + 1 <= most + 1e-6, "more than the rate and its burst"


@pytest.mark.contract
@given(rows=ROWS, given_options=OPTIONS, most=st.integers(1, 20))
def test_no_more_calls_are_made_than_allowed_and_the_rest_is_marked(
    rows: list[Row], given_options: dict[str, Any], most: int
) -> None:
    options = Options(**{**given_options, "errors": "column"}, budget=Budget(max_calls=most))
    sink, seen, operator, _ = run(rows, options)
    assert sorted(call.row[0] for call, _ in sink.results) == list(range(len(rows)))
    assert len(seen.times) <= most
    marked = {
        call.row[0]
        for call, result in sink.results
        if type(result) is Failed and result.info.type == "NotCalled"
    }
    assert marked >= set(range(len(rows))) - set(seen.begun)
    assert operator.statistics().not_called == len(marked)
    assert not marked or len(seen.times) == most, "rows are left although calls were"


@pytest.mark.contract(
    "What answers under the handle of an earlier attempt changes nothing of its row.",
    convicts=["attempt_not_renewed", "attempts_of_batch_not_renewed"],
)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("batch", [None, Batch(3)], ids=["row", "batch"])
def test_an_answer_under_the_handle_of_an_earlier_attempt_changes_nothing(
    batch: Batch | None, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = Handles(monkeypatch)
    taken: list[bool] = []

    async def one(row: tuple[int]) -> str:
        taken.extend(handles.complete_earlier(row[0]))
        if len(handles.of[row[0]]) < 3:
            await asyncio.sleep(HOUR if len(handles.of[row[0]]) == 1 else 0.0)
            raise ConnectionError
        return "of the last"

    async def many(rows: list[tuple[int]]) -> list[str]:
        found = await asyncio.gather(*map(one, rows), return_exceptions=True)
        if isinstance(found[0], BaseException):
            raise found[0]
        return [*map(str, found)]

    async def script() -> list[Any]:
        retry = again(3, 1.0)
        job = Job(
            one if batch is None else many,
            retry=retry,
            timeout=Timeout(attempt=60.0),
            batch=batch,
            ordered=ordered,
        )
        job.push(*((row,) for row in range(3)))
        await job.end()
        return job.results

    assert play(script) == ["of the last"] * 3
    # The second attempt of a row tries the handle of the first, the third those of both.
    assert taken == [False] * 9


def test_a_loop_that_would_sleep_for_ever_says_so() -> None:
    with closing(VirtualTimeLoop()) as loop, pytest.raises(RuntimeError, match="sleep for ever"):
        loop.run_until_complete(loop.create_future())
