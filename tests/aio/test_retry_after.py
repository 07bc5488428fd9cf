"""Retry-After out of headers and errors: seconds, dates, and what is neither."""

from __future__ import annotations

import dataclasses
import http
from datetime import datetime, timezone
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import CallFailed, Rate, Retry
from pillarbox.wire import delay_of, is_overload, is_permanent, retry_after_of, status_of
from tests.aio.virtual import Failing, called, results_of, run

NOON = datetime(2024, 2, 29, 12, 0, 0, tzinfo=timezone.utc).timestamp()
YEAR_9999 = 253_402_300_799


class Refused(Exception):
    """An error as of a client library."""

    def __init__(self, status: Any = None, headers: Any = None) -> None:
        super().__init__(status, headers)
        self.status = status
        self.headers = headers


def dated(text: str, date: str | None = formatdate(NOON, usegmt=True)) -> float | None:
    headers = {"retry-after": text}
    return delay_of(headers if date is None else {**headers, "date": date})


@given(seconds=st.integers(0, 10**9))
def test_seconds_are_seconds(seconds: int) -> None:
    assert delay_of({"Retry-After": str(seconds)}) == seconds
    assert delay_of({"retry-after": f" {seconds} "}) == seconds
    assert delay_of({"RETRY-AFTER-MS": str(seconds)}) == seconds / 1000


@pytest.mark.contract("A date in Retry-After is the time from the date of the answer, and never negative.")
@given(now=st.integers(0, YEAR_9999), then=st.integers(0, YEAR_9999))
def test_a_date_is_the_time_from_the_date_of_the_answer_and_never_negative(now: int, then: int) -> None:
    delay = dated(formatdate(then, usegmt=True), formatdate(now, usegmt=True))
    assert delay == max(0, then - now)


@pytest.mark.parametrize(
    "date",
    [
        "Thu, 29 Feb 2024 12:00:30 GMT",
        "Thursday, 29-Feb-24 12:00:30 GMT",
        "Thu Feb 29 12:00:30 2024",
        "Thu, 29 Feb 2024 12:00:30 -0000",
    ],
)
def test_all_three_forms_of_http_dates_are_in_utc(date: str) -> None:
    assert dated(date) == 30


def test_without_a_date_of_the_answer_the_clock_of_the_machine_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pillarbox.wire.time.time", lambda: NOON - 0.5)
    assert dated(formatdate(NOON + 30, usegmt=True), None) == 30.5
    assert dated(formatdate(NOON + 30, usegmt=True), "yesterday") == 30.5
    assert dated(formatdate(NOON - 30, usegmt=True), None) == 0


@pytest.mark.contract
@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "-1", "nan", "inf", "1e3", "1_000", "١٢", "0x10", "soon, later", "9" * 400),
        *("Thu, 32 Feb 2024 12:00:30 GMT", "Thu, 29 Feb 99999 12:00:30 GMT", "Thu", "12:00:30"),
    ],
)
def test_what_cannot_be_read_counts_as_nothing_said(text: str) -> None:
    assert dated(text) is None


@given(text=st.text(max_size=40), date=st.none() | st.text(max_size=40))
def test_no_header_makes_reading_fail(text: str, date: str | None) -> None:
    delay = dated(text, date)
    assert delay is None or delay >= 0


def test_odd_headers_are_headers_or_nothing() -> None:
    class Broken:
        @property
        def headers(self) -> None:
            raise RuntimeError("closed")

        def get(self, name: str) -> None:
            raise RuntimeError("closed")

    error: Any = Refused(429, Broken())
    assert (status_of(error), retry_after_of(error)) == (429, None)
    error = Refused(429, {"retry-after": b"7"})
    assert retry_after_of(error) == 7
    error = Refused()
    error.response = Broken()
    assert (status_of(error), retry_after_of(error), is_overload(error)) == (None, None, False)


@pytest.mark.parametrize("limits", ["RateLimit-Reset", "X-RateLimit-Reset", "X-Retry-After"])
def test_headers_that_mean_different_things_are_not_read(limits: str) -> None:
    assert retry_after_of(Refused(429, {limits: "7"})) is None


@pytest.mark.contract
@given(delay=st.floats(0, 1e6))
def test_a_retry_after_is_never_shortened_and_at_most_a_tenth_longer(delay: float) -> None:
    # Hypothesis begins each example with the same random numbers.
    for _ in range(20):
        assert delay <= Retry(initial=0.0).pause(1, retry_after=delay) <= delay * 1.1


def test_a_day_is_cut_to_five_minutes_where_nobody_says_otherwise() -> None:
    # Without a `Retry` what a service asks for holds back the rate, when it refuses more than a few.
    for headers, pause in (({"Retry-After": "86400"}, 300.0), ({"Retry-After": "7"}, 7.0), ({}, 1.0)):
        calls = Failing(*[Refused(429, headers)] * 3, None)
        run(calls, 4, rate=Rate(1e9), capacity=1, errors="null")
        assert calls.pauses == [0.0, 0.0, pytest.approx(pause, abs=1e-5)]


def test_the_error_that_an_error_was_raised_from_is_read() -> None:
    def wrapped() -> ValueError:
        try:
            try:
                raise Refused(429, {"Retry-After": "7"})
            except Refused as error:
                raise ValueError("no answer") from error
        except ValueError as error:
            return error

    error = wrapped()
    assert (status_of(error), retry_after_of(error), is_overload(error)) == (429, 7, True)
    failed = CallFailed(1, error)
    assert (status_of(failed), retry_after_of(failed)) == (429, 7)


def test_an_error_that_was_only_met_on_the_way_is_not_read() -> None:
    with pytest.raises(ValueError, match="a fault") as caught:  # noqa: PT012
        try:
            raise Refused(429, {"Retry-After": "7"})
        except Refused:
            raise ValueError("a fault of the function")  # noqa: B904
    error = caught.value
    assert isinstance(error.__context__, Refused)
    assert (status_of(error), retry_after_of(error), is_overload(error)) == (None, None, False)


def test_a_circle_of_causes_comes_to_an_end() -> None:
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert status_of(one) is None


class Coded(Exception):
    def __init__(self, code: object) -> None:
        self.code = code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused(429), 429),
        (Refused(http.HTTPStatus.BAD_GATEWAY), 502),
        (Refused(0), None),
        (Refused(1006), None),
        (Refused("429"), None),
        (Refused(True), None),
        (Coded(http.HTTPStatus.TOO_MANY_REQUESTS), 429),
        (Coded(251), None),  # a code of a database
        (SystemExit(404), None),
        (TimeoutError(), None),
    ],
)
def test_a_status_is_a_status_and_no_other_number(error: BaseException, status: int | None) -> None:
    assert status_of(error) == status


def test_a_result_that_is_not_accepted_is_not_searched_for_a_status() -> None:
    async def call(row: int) -> dict[str, int]:
        return {"status": 429}

    (error,) = results_of([1], call, retry=Retry(1, result=bool), errors="column")
    assert (error.type, error.status) == ("ResultRejected", None)


@pytest.mark.contract("An answer with 429 is an overload.")
@pytest.mark.parametrize(
    ("status", "headers", "overload"),
    [
        (429, {}, True),
        (503, {}, True),
        (503, {"Retry-After": "7"}, True),
        (529, {}, True),
        (403, {"Retry-After": "7"}, True),
        (403, {}, False),
        (500, {"Retry-After": "7"}, False),
        (200, {}, False),
    ],
)
def test_a_service_that_gets_too_many_calls_says_so(
    status: int, headers: dict[str, str], overload: bool
) -> None:
    assert is_overload(Refused(status, headers)) is overload
    assert not is_overload(TimeoutError())


class Described(Exception):
    """An error that carries the error object of a service."""

    def __init__(self, status: int, body: object = None, code: object = None) -> None:
        self.status, self.body, self.code = status, body, code


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        *((Refused(status), True) for status in (400, 401, 402, 403, 404, 405, 410, 413, 422, 501)),
        *((Refused(status), False) for status in (200, 408, 409, 425, 429, 499, 500, 502, 503, 504, 529)),
        (Refused(403, {"Retry-After": "7"}), False),
        (Refused(404, {"Retry-After": "7"}), False),
        (ConnectionError(), False),
        (TimeoutError(), False),
        (ValueError(), False),
        (Described(429, code="insufficient_quota"), True),
        (Described(429, {"error": {"code": "insufficient_quota"}}), True),
        (Described(429, {"type": "insufficient_quota"}), True),
        (Described(429, '{"error": {"code": "billing_hard_limit_reached"}}'), True),
        (Described(429, b'{"error": {"code": "rate_limit_exceeded"}}', "rate_limit_exceeded"), False),
        (Described(429, b"insufficient_quota is what this text speaks of"), False),
        (Described(429, ["insufficient_quota"]), False),
    ],
)
def test_a_permanent_refusal_is_known(error: Exception, permanent: bool) -> None:
    assert is_permanent(error) is permanent
    assert not Retry().applies(1, error) or not permanent
    around = RuntimeError()
    around.__cause__ = error
    assert is_permanent(around) is permanent


@pytest.mark.contract
@pytest.mark.parametrize(
    "asked", [Retry(on=(Exception,)), Retry(when=lambda error: True), Retry(on=(Refused,), when=status_of)]
)
def test_a_permanent_refusal_is_tried_again_where_the_user_asks(asked: Retry) -> None:
    assert asked.applies(1, Refused(404))
    assert len(called(dataclasses.replace(asked, attempts=2), Refused(404)).began) == 2


def test_the_first_error_of_a_chain_that_has_a_status_decides() -> None:
    outer, inner = Refused(500), Refused(404)
    outer.__cause__ = inner
    assert not is_permanent(outer)
    inner.__cause__, outer.__cause__ = outer, None
    assert is_permanent(inner)
