"""The pauses and conditions of `Retry`."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import CallTimeout, Retry

SECONDS = st.floats(0, 1e6)


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


def test_rows_that_failed_together_do_not_come_back_together() -> None:
    assert len({Retry(initial=1.0).pause(1) for _ in range(100)}) > 90


@given(attempts=st.integers(1, 20), attempt=st.integers(1, 30))
def test_there_are_never_more_attempts_than_allowed(attempts: int, attempt: int) -> None:
    assert Retry(attempts).applies(attempt, ValueError()) == (attempt < attempts)


def test_errors_are_retried_by_type() -> None:
    retry = Retry(on=(ConnectionError, TimeoutError))
    assert retry.applies(1, ConnectionRefusedError())
    assert retry.applies(1, CallTimeout("attempt_timeout", 1.0, 1))
    assert not retry.applies(1, ValueError())
    assert not Retry().applies(1, KeyboardInterrupt())
    assert Retry(attempts=5000, initial=0.0).bound(2000) == 0.0
    assert Retry(on=ValueError).on == (ValueError,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"attempts": 0}, ValueError, "attempts=0: must be at least 1"),
        ({"attempts": 1.5}, TypeError, "attempts=1.5"),
        ({"initial": -1}, ValueError, "initial=-1: must be finite and at least 0"),
        ({"maximum": float("inf")}, ValueError, "maximum=inf"),
        ({"multiplier": 0.5}, ValueError, "multiplier=0.5: must be finite and at least 1"),
        ({"initial": "1"}, TypeError, "initial='1': must be a number"),
        ({"on": 5}, TypeError, "on=5: must be an exception type or several"),
        ({"on": ("x",)}, TypeError, "must be an exception type or several"),
        ({"jitter": 1}, TypeError, "jitter=1"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Retry(**arguments)  # type: ignore[arg-type]
