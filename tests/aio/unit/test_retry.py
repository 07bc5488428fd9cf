"""The pauses and conditions of `Retry`, and what its policy decides for one operator."""

from __future__ import annotations

import dataclasses
import functools
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import CallTimeout, Retry, RetryBudget
from pillarbox.aio.errors import ResultRejected
from pillarbox.aio.policies.retry import RetryPolicy
from pillarbox.aio.retry import MAX_RETRY_AFTER, SPREAD, check_retry

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
    policy = RetryPolicy(Retry(on=(on,), when=lambda error: when))
    assert (policy.pause(1, ConnectionError()) is not None) is again


def test_the_predicate_sees_the_error_and_is_not_asked_after_the_last_attempt() -> None:
    seen: list[BaseException] = []
    retry = Retry(2, when=seen.append)
    error = ConnectionError()
    assert RetryPolicy(retry).pause(2, error) is None
    assert seen == []
    assert RetryPolicy(retry).pause(1, error) is None
    assert seen == [error]


@pytest.mark.contract
def test_a_rejected_result_is_asked_for_again_whatever_the_errors_that_are_retried() -> None:
    policy = RetryPolicy(Retry(3, on=(OSError,), when=lambda error: False, result=lambda each: each is None))
    assert policy.checks_results
    assert policy.rejects(None) is True
    assert policy.rejects(0) is False
    assert policy.pause(2, ResultRejected(None)) is not None
    assert policy.pause(3, ResultRejected(None)) is None


def test_only_a_predicate_over_results_costs_something_for_each_result() -> None:
    policy = RetryPolicy(Retry(when=is_busy))
    assert not policy.checks_results
    assert not policy.counts_attempts
    assert not policy.rejects(None)


def test_what_a_predicate_or_a_hook_raises_comes_out() -> None:
    def broken(value: Any) -> Any:
        raise KeyError("a fault of the predicate")

    with pytest.raises(KeyError, match="a fault of the predicate"):
        RetryPolicy(Retry(when=broken)).pause(1, ValueError())
    with pytest.raises(KeyError, match="a fault of the predicate"):
        RetryPolicy(Retry(result=broken)).rejects(1)
    for call in (
        lambda policy: policy.pause(1, OSError()),
        lambda policy: policy.retry_after(OSError()),
    ):
        with pytest.raises(KeyError, match="a fault of the predicate"):
            call(RetryPolicy(Retry(retry_after=broken)))


@pytest.mark.contract
@given(
    attempt=st.integers(1, 50),
    initial=st.floats(0, 100),
    asked=st.none() | st.integers(0, 10**6).map(lambda thousandths: thousandths / 1000),
    most=st.floats(1, 1000),
    jitter=st.booleans(),
)
def test_a_pause_is_as_long_as_the_service_asks_for_and_not_much_longer(
    attempt: int, initial: float, asked: float | None, most: float, jitter: bool
) -> None:
    retry = Retry(100, initial=initial, max_retry_after=most, jitter=jitter)
    policy = RetryPolicy(retry)
    assert policy.retry_after(Refused(asked)) == (None if asked is None else min(asked, most))
    pause = policy.pause(attempt, Refused(asked))
    assert pause is not None
    least = 0.0 if asked is None else min(asked, most)
    if jitter:
        assert least <= pause <= max(retry.bound(attempt), least * (1 + SPREAD))
    else:
        assert pause == max(retry.bound(attempt), least)


def test_rows_that_a_service_sent_away_together_do_not_come_back_together() -> None:
    policy = RetryPolicy(Retry(initial=0.0))
    assert len({policy.pause(1, Refused(30.0)) for _ in range(100)}) > 90


@pytest.mark.contract
def test_a_service_that_asks_for_a_day_is_called_again_after_five_minutes() -> None:
    policy = RetryPolicy(Retry(jitter=False))
    assert policy.pause(1, Refused(86_400.0)) == MAX_RETRY_AFTER == 300.0


def test_the_hook_is_asked_first_and_the_headers_where_it_knows_nothing() -> None:
    answers = iter([4, None, 0.0, -3])
    policy = RetryPolicy(Retry(retry_after=lambda error: next(answers)))
    assert [policy.retry_after(Refused(7.0)) for _ in range(4)] == [4.0, 7.0, 0.0, 0.0]
    assert RetryPolicy(Retry(retry_after=lambda error: math.inf)).retry_after(OSError()) == MAX_RETRY_AFTER


@pytest.mark.parametrize(
    ("delay", "error"), [("7", TypeError), (True, TypeError), (math.nan, ValueError), ([], TypeError)]
)
def test_a_hook_that_gives_no_seconds_is_an_error(delay: Any, error: type[Exception]) -> None:
    policy = RetryPolicy(Retry(retry_after=lambda each: delay))
    with pytest.raises(error, match="retry_after gave .*: must be a number of seconds or None"):
        policy.pause(1, OSError())


@pytest.mark.contract
def test_a_retry_travels_to_another_process() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    plain = Retry(5, on=(OSError,), when=is_busy, budget=RetryBudget(0.5, 3))
    assert pickle.loads(pickle.dumps(plain)) == plain
    captured = "busy"
    retry = Retry(
        when=lambda error: captured in str(error),
        result=lambda each: each is None,
        retry_after=lambda error: 9,
    )
    policy = RetryPolicy(pickle.loads(cloudpickle.dumps(retry)))
    assert policy.pause(1, OSError("busy")) is not None
    assert policy.pause(1, OSError("gone")) is None
    assert policy.rejects(None)
    assert policy.retry_after(OSError()) == 9


@pytest.mark.parametrize("retry", [3, "3", print, object(), Retry])
def test_what_is_no_retry_is_refused_with_what_is_allowed(retry: object) -> None:
    with pytest.raises(TypeError, match=r"retry=.*: must be a number of attempts, a pillarbox.Retry or None"):
        check_retry(retry)


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
