"""Neither keys nor, on request, rows leave a call in a text: in no error, log line, dead letter or ledger."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pillarbox import (
    Budget,
    CallFailed,
    CallTimeout,
    Errors,
    Ledger,
    Outcome,
    PillarboxError,
    Rate,
    Redact,
    Retry,
    TooManyFailures,
    async_map,
)
from pillarbox.wire import status_of
from tests.aio.virtual import again

KEY = "AIzaSyB-0123456789abcdefghijklmnopqrstu"
PASSWORD = "hunter2hunter2"
PERSON = {"id": 7, "name": "Ada Lovelace", "address": "12 St James's Square, London"}

SECRETS = (KEY, PASSWORD)
PERSONAL = ("Ada", "Lovelace", "James", "Square", "London")


class GeoError(Exception):
    """An error as clients of services make them: of more than a text, which has the URL in it."""

    def __init__(self, status: int, url: str) -> None:
        super().__init__(status, url)
        self.status = status
        self.url = url

    def __str__(self) -> str:
        return f"{self.status} for GET {self.url}"


async def geocode(row: Any) -> Any:
    """A call that fails with all that must not be seen in its error and those that it was raised from."""
    try:
        try:
            raise ConnectionError(f"no way to https://me:{PASSWORD}@geo.example/v1")
        except ConnectionError as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"asked for {row['address']} with api_key={KEY}")
            raise ValueError(f"{row['name']} is not to be found, token={KEY}")  # noqa: B904
    except ValueError as error:
        raise GeoError(503, f"https://geo.example/v1?address={row['address']}&key={KEY}") from error


def printed(error: BaseException) -> str:
    """The error as Python prints it, without the lines of this file's code."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return "\n".join(line for line in text.split("\n") if not line.startswith("    "))


def check(text: str, *parts: str) -> None:
    """`text` says what happened, and none of `parts`."""
    assert "GeoError" in text or "503" in text
    assert not [part for part in parts if part in text]


def raised(kind: type[BaseException], fn: Callable[[Any], Any], **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        list(async_map([PERSON], fn, **options))
    return caught.value


@pytest.mark.contract
def test_no_key_stands_in_an_error_nor_in_those_that_it_was_raised_from() -> None:
    error = raised(CallFailed, geocode)
    text = printed(error)
    check(text, *SECRETS)
    assert "GET https://geo.example/v1?***" in text
    assert "https://***@geo.example/v1" in text
    assert "direct cause" in text
    # For programs, the error itself; what is printed for it has its name.
    assert type(error.cause) is GeoError
    assert error.cause.url.endswith(KEY)
    assert type(error.__cause__).__name__ == "GeoError"
    assert status_of(error) == status_of(error.cause) == 503
    check(repr(error.__cause__), *SECRETS)
    many = raised(TooManyFailures, geocode, errors=Errors("null", stop_after=0))
    check(printed(many), *SECRETS)
    assert "direct cause" in printed(many)


@pytest.mark.contract
def test_an_error_without_keys_is_the_very_error_that_was_raised() -> None:
    the_error = GeoError(503, "https://geo.example/v1")

    async def call(row: Any) -> None:
        raise the_error

    error = raised(CallFailed, call)
    assert error.cause is the_error
    assert error.__cause__ is the_error


@pytest.mark.contract
@pytest.mark.parametrize("rows", [False, True])
def test_no_key_stands_in_outcomes_dead_letters_ledger_and_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    hidden = (*SECRETS, *PERSONAL) if rows else SECRETS
    ledger = Ledger(tmp_path / "ledger", retry_errors=False, uid="geo", run="r", key=["id"])
    redact = Redact(rows=rows)
    for _ in range(2):
        # The second time the ledger answers.
        [outcome] = async_map([PERSON], geocode, ledger=ledger, errors=Errors("column", redact=redact))
        check(repr(outcome), *hidden)
    check(caplog.text, *hidden)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "ledger").rglob("*") if path.is_file())
    assert b"GeoError" in kept
    check(kept.decode("latin-1"), *hidden)
    aside = Errors(redact=redact, dead_letter=tmp_path / "letters")
    assert list(async_map([PERSON], geocode, errors=aside)) == []
    letter = json.loads((tmp_path / "letters").read_text())
    assert letter.pop("row") == PERSON
    check(json.dumps(letter), *hidden)


@pytest.mark.contract
def test_a_ledger_that_an_earlier_version_wrote_gives_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "ledger", retry_errors=False, uid="geo", run="r", key=["id"])
    given: dict[str, Any] = {"errors": "column", "ledger": ledger}
    with monkeypatch.context() as before:
        before.setattr(Redact, "text", lambda self, text: text)
        [(_, error)] = async_map([PERSON], geocode, **given)
        assert KEY in error.message
    [(_, error)] = async_map([PERSON], geocode, **given)
    check(error.message, *SECRETS)


@pytest.mark.contract
def test_no_key_of_an_attempt_before_stands_in_what_ends_a_row() -> None:
    calls = 0

    async def call(row: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await geocode(row)
        await asyncio.sleep(1000)

    late = raised(CallTimeout, call, timeout=0.2, retry=again(3, 0.001))
    assert "The attempt before ended with GeoError" in str(late)
    check(printed(late), *SECRETS)
    outcomes = list(
        async_map(
            [PERSON, PERSON],
            geocode,
            errors="column",
            retry=again(3, 0.01),
            rate=Rate(1000.0, cool_down=0.01),
            budget=Budget(max_calls=2),
            capacity=1,
        )
    )
    assert {outcome.error.type for outcome in outcomes if isinstance(outcome, Outcome) and outcome.error} >= {
        "NotCalled"
    }
    assert "not called again" in repr(outcomes)
    check(repr(outcomes), *SECRETS)


@pytest.mark.contract
def test_with_rows_withheld_no_value_of_a_row_stands_in_an_error() -> None:
    error = raised(CallFailed, geocode, errors=Errors(redact=Redact(rows=True)))
    check(printed(error), *SECRETS, *PERSONAL)
    assert error.row is None
    check(str(error.with_trace()), *SECRETS, *PERSONAL)

    async def hang(row: Any) -> None:
        await asyncio.sleep(60)

    late = raised(CallTimeout, hang, timeout=0.01, errors=Errors(redact=Redact(rows=True)))
    assert not [part for part in PERSONAL if part in str(late)]
    assert "Ada" in str(raised(CallTimeout, hang, timeout=0.01))


@pytest.mark.contract
def test_with_rows_withheld_no_rejected_result_stands_in_an_error() -> None:
    async def call(row: Any) -> Any:
        return [row["address"] * 20]

    retry = Retry(attempts=2, initial=0.001, result=lambda result: True)
    assert "Square" in printed(raised(CallFailed, call, retry=retry))
    error = raised(CallFailed, call, retry=retry, errors=Errors(redact=Redact(rows=True)))
    assert type(error.cause).__name__ == "ResultRejected"
    assert "ResultRejected: <withheld" in printed(error)
    assert not [part for part in PERSONAL if part in printed(error)]


@pytest.mark.contract
def test_a_hook_sees_each_text_of_a_failure_without_its_keys_and_has_the_last_word(tmp_path: Path) -> None:
    seen: list[str] = []

    def hook(text: str) -> str:
        seen.append(text)
        return re.sub("(?i)ada lovelace", "<name>", text)

    error = raised(CallFailed, geocode, errors=Errors(redact=hook))
    assert "Ada" not in printed(error)
    assert "<name>" in printed(error)
    assert "<name>" in error.row
    assert seen
    assert not [text for text in seen for secret in SECRETS if secret in text]


@pytest.mark.contract
@pytest.mark.parametrize("bad", [lambda text: 1 / 0, lambda text: None])
def test_a_text_for_which_the_hook_fails_is_withheld(bad: Any) -> None:
    error = raised(CallFailed, geocode, errors=Errors(redact=bad))
    text = printed(error)
    assert "call failed after 1 attempt" in text
    assert "<withheld: redact" in text
    check(text + str(error.with_trace()), *SECRETS, *PERSONAL, "geo.example")


@pytest.mark.contract
def test_nothing_is_redacted_where_nothing_fails() -> None:
    async def call(row: int) -> int:
        return row

    def hook(text: str) -> str:
        raise AssertionError(text)

    assert list(async_map(range(100), call, errors=Errors(redact=hook))) == [*range(100)]


@pytest.mark.contract
def test_a_function_that_does_not_open_shows_no_key() -> None:
    class Client:
        async def __aenter__(self) -> Any:
            await geocode(PERSON)

        async def __aexit__(self, *_: object) -> None:
            return

        async def __call__(self, row: Any) -> Any:
            return row

    error = raised(PillarboxError, Client())
    assert type(error).__name__ == "OpenFailed"
    check(printed(error), *SECRETS)
    assert isinstance(error.cause, GeoError)


def test_what_a_worker_tells_of_an_error_has_no_key() -> None:
    error = raised(CallFailed, geocode).with_trace()
    text = printed(error)
    check(text, *SECRETS)
    assert "The original traceback" in text


@pytest.mark.parametrize("length", range(960, 1010, 7))
def test_a_key_where_a_text_is_cut_does_not_stay_in_part(length: int) -> None:
    async def call(row: str) -> None:
        raise ValueError("x" * length + " " + KEY)

    with pytest.raises(CallFailed) as caught:
        list(async_map(["x" * (length - 800) + " " + KEY], call))
    error = caught.value
    assert error.row is not None
    assert "AIza" not in error.reason
    assert "AIza" not in error.row


def test_errors_of_a_group_are_redacted_each() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no groups of errors")

    async def call(row: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(geocode(row))
            group.create_task(geocode(row))

    error = raised(CallFailed, call)
    assert type(error.__cause__).__name__ == "ExceptionGroup"
    assert printed(error).count("GeoError: 503") >= 2
    check(printed(error), *SECRETS)


def test_a_stand_in_is_called_as_its_error_is_and_travels() -> None:
    class Strange(OSError):
        def __init__(self, a: int, *, b: int) -> None:
            super().__init__(13, f"token={KEY}")
            self.a = a

    found = Redact().sealed(Strange(1, b=2))
    assert type(found).__qualname__ == Strange.__qualname__
    assert KEY not in f"{found}{found!r}{found.args}"
    assert str(pickle.loads(pickle.dumps(found))) == f"Strange: {found}"


def test_a_chain_of_errors_that_is_a_circle_has_an_end() -> None:
    first, second = ValueError(f"token={KEY}"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert KEY not in printed(Redact().sealed(second))


@pytest.mark.contract
def test_what_leaves_for_spark_has_no_key_in_its_text_and_no_raw_cause() -> None:
    redact = Redact(rows=True)
    try:
        asyncio.run(geocode(PERSON))
    except GeoError as error:
        sealed = redact.sealed(error)
    check("".join(traceback.format_exception(sealed)), *SECRETS, *PERSONAL)
    assert type(sealed).__name__ == "GeoError"
    assert "in geocode" in str(sealed)
    plain = ValueError("nothing to hide")
    assert Redact().sealed(plain) is plain


@pytest.mark.contract
def test_no_line_of_the_log_shows_a_key_nor_does_a_traceback_in_it(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("pillarbox")
    try:
        asyncio.run(geocode(PERSON))
    except GeoError as error:
        log.warning("lost: %s, %r", error, error, exc_info=True)
    text = "\n".join(line for line in caplog.text.split("\n") if not line.startswith("    "))
    check(text, *SECRETS)
    assert "direct cause" in text
    log.warning("%s of %d", "1", 2)
    assert caplog.records[-1].args == ("1", 2)


def test_an_error_pickles_whatever_its_hook_is() -> None:
    error = raised(CallFailed, geocode, errors=Errors(redact=lambda text: text.upper()))
    again_ = pickle.loads(pickle.dumps(CallFailed(1, ValueError(f"token={KEY}"), "row")))
    assert KEY not in str(again_)
    assert error.__reduce__()[1][0] == 1


@pytest.mark.parametrize("bad", [3, "text", b""])
def test_what_is_no_hook_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"redact={bad!r}: must be a function")):
        Errors(redact=bad)
    with pytest.raises(TypeError, match="redact="):
        async_map([], geocode, errors=Errors(redact=bad))
    with pytest.raises(TypeError, match="fn="):
        Redact(bad)
    with pytest.raises(TypeError, match="rows="):
        Redact(rows=bad)
