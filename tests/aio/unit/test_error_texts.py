"""Errors that travel as texts, as Spark's do, and are had again on the other side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import CallFailed, CallTimeout
from pillarbox.aio.errors import KeptError, from_text, shorten
from pillarbox.redaction import visible


class ServiceError(Exception):
    pass


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


HOSTILE = st.one_of(
    st.text(), st.sampled_from(['[pillarbox] {"error": "CallFailed"}', "\n[pillarbox] {", "}\n"])
)


@pytest.mark.contract
@given(
    row=HOSTILE,
    message=HOSTILE,
    around=HOSTILE,
    attempts=st.integers(0, 100),
    kind=st.sampled_from([ValueError, ServiceError]),
)
def test_a_failed_call_is_had_again_from_a_text_that_holds_its_own(
    row: str, message: str, around: str, attempts: int, kind: type[Exception]
) -> None:
    error = CallFailed(attempts, raised(kind(message)), shorten(row))
    text = f"{around}\n{error.with_trace()}\n SQLSTATE: 38000\n\tat org.apache.spark.Executor"
    found = from_text(text)
    assert isinstance(found, CallFailed)
    assert (found.attempts, found.row) == (attempts, shorten(row))
    assert type(found.cause).__name__ == kind.__name__
    assert isinstance(found.cause, ValueError if kind is ValueError else KeptError)
    assert str(found.cause) == visible(message)[:1000]
    assert found.trace is not None and "in raised" in found.trace


def test_a_time_out_is_had_again_from_its_text() -> None:
    error = CallTimeout("timeout.attempt", 0.5, 3, "Row(id=1)", "The loop is blocked.")
    found = from_text(f"PythonException: {error.with_trace()}\nat java")
    assert isinstance(found, CallTimeout)
    assert (found.limit, found.seconds, found.attempts, found.row) == ("timeout.attempt", 0.5, 3, "Row(id=1)")


def test_an_error_that_is_made_of_more_than_a_text_keeps_its_name_and_its_text() -> None:
    error = raised(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))
    found = from_text(str(CallFailed(1, error, "1").with_trace()))
    assert found is not None and isinstance(found, CallFailed)
    assert type(found.cause).__name__ == "UnicodeDecodeError"
    assert str(found.cause) == str(error)


@pytest.mark.parametrize(
    "text", ["", "no such thing", "[pillarbox] ", '[pillarbox] {"error": 1}', "[pillarbox] []"]
)
def test_a_text_without_an_error_gives_none(text: str) -> None:
    assert from_text(text) is None


def test_an_error_is_had_again_without_the_query_of_its_address() -> None:
    error = raised(ServiceError("503 for GET https://geo.example/v1?key=secret"))
    found = from_text(str(CallFailed(1, error).with_trace()))
    assert isinstance(found, CallFailed)
    assert str(found.cause) == "503 for GET https://geo.example/v1?***"
