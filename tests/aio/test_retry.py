"""The pauses and conditions of `Retry`, by themselves and in a job in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
import pickle
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import CallTimeout, Retry, RetryBudget, async_map
from tests.aio.virtual import Failing, called, results_of, run
from tests.search import examples

SECONDS = st.floats(0, 1e6)


class Refused(Exception):
    """An error of a service that asks for a pause."""

    def __init__(self, retry_after: float | None) -> None:
        super().__init__(retry_after)
        self.headers = {} if retry_after is None else {"Retry-After": f"{retry_after:.3f}"}


async def awaited(value: Any) -> bool:
    return True


async def yielded(value: Any) -> Any:
    yield True


class Awaited:
    async def __call__(self, value: Any) -> bool:
        return True


def is_busy(error: BaseException) -> bool:
    return "busy" in str(error)


@pytest.mark.contract
@given(attempt=st.integers(1, 10_000), initial=SECONDS, maximum=SECONDS, multiplier=st.floats(1, 1e6))
def test_a_pause_is_between_zero_and_its_bound(
    attempt: int, initial: float, maximum: float, multiplier: float
) -> None:
    retry = Retry(initial=initial, maximum=maximum, multiplier=multiplier)
    bound = retry.bound(attempt)
    assert 0 <= retry.pause(attempt) <= bound <= maximum
    assert bound <= retry.bound(attempt + 1)
    assert dataclasses.replace(retry, jitter=False).pause(attempt) == bound


def test_pauses_grow_by_the_multiplier_up_to_the_maximum() -> None:
    retry = Retry(initial=0.5, maximum=3.0, multiplier=2.0, jitter=False)
    assert [retry.pause(attempt) for attempt in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.contract
def test_rows_that_failed_together_do_not_come_back_together() -> None:
    assert len({Retry(initial=1.0).pause(1) for _ in range(100)}) > 90


@pytest.mark.contract
@given(attempts=st.integers(1, 20), attempt=st.integers(1, 30))
def test_there_are_never_more_attempts_than_allowed(attempts: int, attempt: int) -> None:
    assert Retry(attempts).applies(attempt, ValueError()) == (attempt < attempts)


def test_errors_are_retried_by_type() -> None:
    retry = Retry(on=(ConnectionError, TimeoutError))
    assert retry.applies(1, ConnectionRefusedError())
    assert retry.applies(1, CallTimeout("timeout.attempt", 1.0, 1))
    assert not retry.applies(1, ValueError())
    assert not Retry().applies(1, KeyboardInterrupt())
    assert Retry(attempts=5000, initial=0.0).bound(2000) == 0.0
    assert Retry(on=ValueError).on == (ValueError,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"attempts": 0}, ValueError, "attempts=0: must be at least 1"),
        ({"attempts": 1.5}, TypeError, "attempts=1.5"),
        ({"initial": -1}, ValueError, "initial=-1: must be a finite number, at least 0"),
        ({"maximum": float("inf")}, ValueError, "maximum=inf"),
        ({"multiplier": 0.5}, ValueError, "multiplier=0.5: must be a finite number, at least 1"),
        ({"initial": "1"}, TypeError, "initial='1': must be a number"),
        ({"on": 5}, TypeError, "on=5: must be an exception type or several"),
        ({"on": ("x",)}, TypeError, "must be an exception type or several"),
        ({"jitter": 1}, TypeError, "jitter=1"),
        ({"when": 5}, TypeError, "when=5: must be a function of the error or None, not int"),
        ({"when": (ValueError,)}, TypeError, "when=.*: must be a function of the error or None, not tuple"),
        ({"when": awaited}, TypeError, "when=.*: must be a plain function, its answer cannot be awaited"),
        ({"when": functools.partial(awaited)}, TypeError, "when=.*: must be a plain function"),
        ({"result": Awaited()}, TypeError, "result=.*: must be a plain function"),
        ({"result": yielded}, TypeError, "result=.*: must be a plain function"),
        ({"result": "no"}, TypeError, "result='no': must be a function of the result or None, not str"),
        ({"retry_after": awaited}, TypeError, "retry_after=.*: must be a plain function"),
        ({"retry_after": 7}, TypeError, "retry_after=7: must be a function of the error or None, not int"),
        ({"max_retry_after": 0}, ValueError, "max_retry_after=0: must be a finite number above 0"),
        ({"max_retry_after": math.inf}, ValueError, "max_retry_after=inf: must be a finite number above 0"),
        ({"max_outage": -1}, ValueError, "max_outage=-1: must be a finite number, at least 0"),
        ({"max_outage": None}, TypeError, "max_outage=None: must be a number"),
        ({"budget": 0.2}, TypeError, "budget=0.2: must be a pillarbox.RetryBudget or None"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Retry(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("on", "when", "again"),
    [(OSError, True, True), (OSError, False, False), (ValueError, True, False), (ValueError, False, False)],
)
def test_both_the_type_and_the_predicate_must_agree(on: type[Exception], when: bool, again: bool) -> None:
    calls = called(Retry(2, on=(on,), when=lambda error: when, max_outage=0), ConnectionError())
    assert len(calls.began) == (2 if again else 1)


def test_the_predicate_sees_the_error_and_is_not_asked_after_the_last_attempt() -> None:
    seen: list[BaseException] = []

    def when(error: BaseException) -> bool:
        seen.append(error)
        return True

    errors = [OSError("first"), OSError("second")]
    assert len(called(Retry(2, when=when), *errors).began) == 2
    assert seen == errors[:1]
    # What it gives is taken for true or false.
    assert len(called(Retry(2, when=seen.append), OSError()).began) == 1


@pytest.mark.contract
def test_a_rejected_result_is_asked_for_again_whatever_the_errors_that_are_retried() -> None:
    retry = Retry(3, on=(OSError,), when=lambda error: False, result=lambda each: each is None)
    for answers, calls, failed in (([None, 0], 2, None), ([None] * 4, 3, "ResultRejected"), ([7], 1, None)):
        given = Answers(*answers)
        (result,) = results_of([1], given, retry=retry, errors="column")
        assert getattr(result, "type", None) == failed
        assert len(given.left) == len(answers) - calls
        assert failed or result == answers[calls - 1]


class Answers:
    """An async function that gives one after another."""

    def __init__(self, *answers: Any) -> None:
        self.left = [*answers]

    async def __call__(self, row: Any) -> Any:
        return self.left.pop(0)


def broken(value: Any) -> Any:
    raise KeyError("a fault of the predicate")


@pytest.mark.parametrize("name", ["when", "result", "retry_after"])
def test_what_a_predicate_or_a_hook_raises_is_the_error_of_the_row(name: str) -> None:
    fn = Failing(None if name == "result" else OSError())
    job, _ = run(fn, 1, retry=Retry(3, **{name: broken}), errors="column")
    assert [(error.type, error.message) for error in job.results] == [
        ("KeyError", "'a fault of the predicate'")
    ]
    assert len(fn.began) == 1


@pytest.mark.contract
@settings(deadline=None, max_examples=examples(100))
@given(
    attempt=st.integers(1, 5),
    initial=st.floats(0, 20),
    asked=st.none() | st.integers(0, 60_000).map(lambda thousandths: thousandths / 1000),
    most=st.floats(1, 20),
    jitter=st.booleans(),
)
def test_a_pause_is_as_long_as_the_service_asks_for_and_not_much_longer(
    attempt: int, initial: float, asked: float | None, most: float, jitter: bool
) -> None:
    retry = Retry(100, initial=initial, maximum=20, max_retry_after=most, jitter=jitter)
    calls = called(retry, *[ValueError()] * (attempt - 1), Refused(asked), None)
    assert len(calls.began) == attempt + 1
    pause = calls.pauses[-1]
    least = 0.0 if asked is None else min(asked, most)
    if jitter:
        assert least - 1e-5 <= pause <= max(retry.bound(attempt), least * 1.1) + 1e-5
    else:
        assert pause == pytest.approx(max(retry.bound(attempt), least), abs=1e-5)


def test_rows_that_a_service_sent_away_together_do_not_come_back_together() -> None:
    began: dict[int, list[float]] = {}

    async def call(row: int) -> int:
        times = began.setdefault(row, [])
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise Refused(30.0)
        return row

    job, _ = run(call, 100, retry=Retry(initial=0.0), capacity=100)
    assert job.results == [*range(100)]
    assert len({second - first for first, second in began.values()}) > 90


@pytest.mark.contract
def test_a_service_that_asks_for_a_day_is_called_again_after_five_minutes() -> None:
    assert called(Retry(jitter=False), Refused(86_400.0), None).pauses == [300.0]


def test_the_hook_is_asked_first_and_the_headers_where_it_knows_nothing() -> None:
    class Hooked(Refused):
        def __init__(self, said: float | None) -> None:
            super().__init__(7.0)
            self.said = said

    def hook(error: BaseException) -> Any:
        assert isinstance(error, Hooked)
        return error.said

    retry = Retry(9, initial=0.0, jitter=False, retry_after=hook)
    errors = [Hooked(said) for said in (4, None, 0.0, -3, math.inf)]
    assert called(retry, *errors, None).pauses == [4.0, 7.0, 0.0, 0.0, 300.0]


@pytest.mark.parametrize(
    ("delay", "error"), [("7", "TypeError"), (True, "TypeError"), (math.nan, "ValueError"), ([], "TypeError")]
)
def test_a_hook_that_gives_no_seconds_is_an_error(delay: Any, error: str) -> None:
    job, _ = run(Failing(OSError()), 1, retry=Retry(retry_after=lambda each: delay), errors="column")
    (info,) = job.results
    assert info.type == error
    assert re.match("retry_after gave .*: must be a number of seconds or None", info.message)


@pytest.mark.contract
def test_a_retry_travels_to_another_process() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    plain = Retry(5, on=(OSError,), when=is_busy, budget=RetryBudget(0.5, 3))
    assert pickle.loads(pickle.dumps(plain)) == plain
    captured = "busy"
    sent = Retry(
        2,
        initial=0.0,
        when=lambda error: captured in str(error),
        result=lambda each: each is None,
        retry_after=lambda error: 9,
        jitter=False,
    )
    retry = pickle.loads(cloudpickle.dumps(sent))
    assert called(retry, OSError("busy"), None).pauses == [9.0]
    assert len(called(retry, OSError("gone"), None).began) == 1
    (result,) = results_of([1], Answers(None, None), retry=retry, errors="column")
    assert (result.type, result.attempts) == ("ResultRejected", 2)


@pytest.mark.parametrize("retry", ["3", print, object(), Retry])
def test_what_is_no_retry_is_refused_with_what_is_allowed(retry: Any) -> None:
    with pytest.raises(TypeError, match=r"retry=.*: must be a number of attempts, a pillarbox.Retry or None"):
        async_map([], Answers(), retry=retry)


class Group(Exception):
    """As a group of errors of Python 3.11 and later."""

    def __init__(self, *exceptions: Exception) -> None:
        super().__init__(exceptions)
        self.exceptions = exceptions

    def derive(self, exceptions: Any) -> Group:
        return Group(*exceptions)


@pytest.mark.contract(convicts=["group_tried_for_one"])
def test_a_group_of_errors_is_tried_again_if_each_of_them_is() -> None:
    retry = Retry(on=(ConnectionError,))
    assert retry.wants(Group(ConnectionError(), ConnectionError()))
    assert not retry.wants(Group(ConnectionError(), ValueError()))
