"""The operator under random rows, options and ends, in virtual time: what holds whatever happens.

Every row follows a script: what each of its attempts takes and how it ends. The script does not say when a
row gets its slot, so what is checked is what must hold for any order of the slots.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.aio import attempts as attempts_module
from pillarbox.aio.errors import CallFailed, CallTimeout
from pillarbox.aio.failure import Failed
from pillarbox.aio.limits.local import LocalGate
from pillarbox.aio.limits.rate import Rate
from pillarbox.aio.operator import AsyncOperator
from pillarbox.aio.options import RAISE, Options
from pillarbox.aio.retry import Retry
from pillarbox.aio.sinks import Chunk
from pillarbox.aio.sources import CollectionSource
from pillarbox.testing import VirtualTimeLoop
from tests.search import examples


@dataclass(frozen=True)
class Attempt:
    """How one attempt goes: seconds, and whether it gives a result, raises, or raises what is not retried."""

    seconds: float
    end: str


@dataclass(frozen=True)
class Row:
    key: int
    attempts: tuple[Attempt, ...]


@dataclass
class Seen:
    """What the function saw."""

    running: int = 0
    most: int = 0
    begun: Counter[int] = field(default_factory=Counter)
    started: dict[int, float] = field(default_factory=dict)
    last: dict[int, str] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)


class Fatal(Exception):
    """An error that is not retried."""


class Collecting:
    """A sink that keeps what it gets, and when."""

    has_room = True
    room: int | None = None

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.loop = loop
        self.results: Chunk = []
        self.times: list[float] = []
        self.ended = False
        self.error: BaseException | None = None

    held_bytes = 0

    def emit(self, results: Chunk, held: int) -> None:
        assert not self.ended
        self.results.extend(results)
        self.times.extend([self.loop.time()] * len(results))

    def call_when_room(self, wake: Any) -> None:
        raise AssertionError("there is always room")

    def finish(self) -> None:
        assert not self.ended
        self.ended = True

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.finish()


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
    },
    optional={
        "timeout": st.sampled_from([0.05, 0.7, 2.0, 20.0]),
        "attempt_timeout": st.sampled_from([0.05, 0.7, 2.0]),
        "retry": st.builds(
            Retry,
            attempts=st.integers(1, 4),
            initial=st.sampled_from([0.0, 0.3, 1.0]),
            on=st.just((ConnectionError, TimeoutError)),
        ),
        "max_bytes": st.integers(1, 500),
        "on_timeout": st.just("in time"),
    },
)


def run(
    rows: list[Row], options: Options, stop_at: float | None = None
) -> tuple[Collecting, Seen, AsyncOperator, VirtualTimeLoop]:
    """Carry the rows through an operator; returns when it has ended."""
    seen = Seen()
    with closing(VirtualTimeLoop()) as loop:
        sink = Collecting(loop)

        async def fn(item: tuple[int, Row]) -> int:
            number, row = item
            seen.started.setdefault(number, loop.time())
            attempt = row.attempts[min(seen.begun[number], len(row.attempts) - 1)]
            seen.begun[number] += 1
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
            return number

        def gate(rate: Any, max_calls: Any, max_cost: Any, _: Any, cools: bool) -> LocalGate | None:
            limited = not (rate is max_calls is max_cost is None)
            return LocalGate(rate, max_calls, max_cost, loop.time) if limited else None

        with mock.patch.object(attempts_module, "open_gate", gate):
            operator = AsyncOperator(
                fn,
                options,
                CollectionSource(list(enumerate(rows))),
                sink,
                loop=loop,
                context=contextvars.copy_context(),
            )

        async def main() -> None:
            operator.start()
            if stop_at is not None:
                loop.call_at(stop_at, lambda: None if operator.ended.done() else operator.stop())
            await operator.ended

        # The operator takes its mailbox for the thread, not for a task.
        loop.run_until_complete(main())
        leftover = asyncio.all_tasks(loop)
        assert not leftover, leftover
        stopping = 0 if stop_at is None or loop.time() > stop_at else 1
        assert loop.armed_timers <= stopping, "a timer is left behind"
        return sink, seen, operator, loop


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
@given(rows=ROWS, given_options=OPTIONS)
def test_every_row_has_one_outcome_within_its_limits(rows: list[Row], given_options: dict[str, Any]) -> None:
    options = Options(**given_options)
    sink, seen, operator, _ = run(rows, options)
    assert seen.most <= options.capacity
    assert seen.running == 0
    statistics = operator.statistics()
    assert statistics.calls == sum(seen.begun.values())
    attempts = options.retry.attempts if options.retry is not None else 1
    for number, begun in seen.begun.items():
        assert begun <= attempts, f"row {number}: {begun} attempts"
    if sink.error is not None:
        if options.errors != "fail" or not isinstance(sink.error, CallFailed | CallTimeout):
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
    timed = options.timeout if options.timeout is not None else float("inf")
    if type(result) is Failed:
        kind = result.info.type
        assert result.info.attempts == seen.begun[number]
        if kind == "CallTimeout":
            assert options.on_timeout is RAISE
        else:
            assert (kind, seen.last[number]) in {("ConnectionError", "error"), ("Fatal", "fatal")}
    elif result == "in time":
        assert options.on_timeout == "in time"
    else:
        assert result == number, "a row has another row's result"
        assert seen.last[number] == "result"
        if not options.ordered:
            assert emitted <= seen.started[number] + timed + 1e-6


@pytest.mark.contract
@given(rows=ROWS, given_options=OPTIONS, stop_at=st.floats(0, 20))
def test_a_stopped_operator_emits_nothing_more_and_leaves_nothing(
    rows: list[Row], given_options: dict[str, Any], stop_at: float
) -> None:
    sink, seen, _, _ = run(rows, Options(**given_options), stop_at)
    assert sink.ended
    assert seen.running == 0
    numbers = [call.row[0] for call, _ in sink.results]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.contract
@given(rows=ROWS, given_options=OPTIONS, memo=st.integers(0, 3))
def test_equal_rows_share_a_call_and_get_equal_results(
    rows: list[Row], given_options: dict[str, Any], memo: int
) -> None:
    options = Options(**{**given_options, "errors": "null"}, dedupe=lambda item: item[1].key, memo=memo)
    sink, seen, operator, _ = run(rows, options)
    if sink.error is not None:
        raise sink.error
    assert sorted(call.row[0] for call, _ in sink.results) == list(range(len(rows)))
    statistics = operator.statistics()
    assert statistics.shared == len(rows) - len(seen.begun)
    for call, result in sink.results:
        if type(result) is int:
            assert rows[result].key == call.row[1].key, "a result of a row that is not equal"


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
    options = Options(**{**given_options, "errors": "column"}, max_calls=most)
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


def test_a_loop_that_would_sleep_for_ever_says_so() -> None:
    with closing(VirtualTimeLoop()) as loop, pytest.raises(RuntimeError, match="sleep for ever"):
        loop.run_until_complete(loop.create_future())
