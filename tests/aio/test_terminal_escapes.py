"""Texts of a service that steer a terminal leave through each exit as their escapes."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import CallFailed, Errors, Ledger, Redact, TooManyFailures, async_map
from pillarbox.aio.observe import report
from pillarbox.clients import HttpLookup
from tests.aio.virtual import Job, play
from tests.clients.conftest import serve_handler
from tests.search import examples

STEERING = (
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *("\u2028", "\u2029"),
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
)
"""The controls of ASCII and Latin 1, separators of lines, and what turns the direction of a text."""
KEPT = ("\t", "\n")

SAID = "no: " + "".join(f"{each}[31m;" for each in STEERING if each not in KEPT) + " end"


def steering_in(text: str) -> list[str]:
    return [each for each in STEERING if each in text and each not in KEPT]


async def fail(row: Any) -> Any:
    raise ValueError(SAID)


@pytest.mark.contract
def test_no_text_of_an_error_steers_a_terminal() -> None:
    with pytest.raises(CallFailed) as one:
        list(async_map(["a"], fail))
    with pytest.raises(TooManyFailures) as many:
        list(async_map(["a", "b"], fail, errors=Errors("null", stop_after=0)))
    for error in (one.value, many.value):
        for text in (str(error), "".join(traceback.format_exception(error))):
            assert "\\x1b[31m" in text
            assert "\\u202e[31m" in text
            assert steering_in(text) == []
    # For programs, the error itself.
    assert str(one.value.cause) == SAID


@pytest.mark.contract
@pytest.mark.parametrize("redact", [None, Redact(lambda text: text + SAID)])
def test_what_is_kept_of_a_failure_steers_no_terminal(redact: Redact | None, tmp_path: Path) -> None:
    errors = Errors("column", redact=redact, dead_letter=str(tmp_path / "dead.jsonl"))
    ledger = Ledger(str(tmp_path / "ledger"), uid="a", run="1", retry_errors=False)
    for _ in range(2):
        # The second time the ledger answers.
        (outcome,) = async_map([{"id": 1}], fail, errors=errors, ledger=ledger)
        assert outcome.error is not None
        assert "\\x9b[31m" in outcome.error.message
        assert steering_in(outcome.error.message) == []
    for line in (tmp_path / "dead.jsonl").read_text().splitlines():
        assert steering_in(json.loads(line)["_error"]["message"]) == []


@pytest.mark.contract
@pytest.mark.parametrize("name", ["pillarbox", "pillarbox.call"])
def test_no_line_of_the_log_steers_a_terminal(name: str) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    log = logging.getLogger(name)
    log.addHandler(handler)
    try:
        log.warning("a row failed: %s", SAID)
        log.warning("an error", exc_info=ValueError(SAID))
        list(async_map(["a"], fail, errors="drop"))
    finally:
        log.removeHandler(handler)
    assert written.getvalue().count("\\x1b[31m") >= 2
    assert steering_in(written.getvalue()) == []


@pytest.mark.contract
def test_an_answer_of_a_service_steers_no_terminal() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=418, body=SAID.encode())

    async def ask() -> str:
        async with serve_handler(refuse) as url, HttpLookup(f"{url}/{{id}}") as lookup:
            with pytest.raises(Exception, match="418") as found:
                await lookup({"id": "1"})
        return str(found.value)

    text = asyncio.run(ask())
    assert "\\x1b[31m" in text
    assert steering_in(text) == []


@pytest.mark.contract("A wait that a bar shows steers no terminal.")
def test_a_wait_that_is_shown_steers_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    class Row:
        def __repr__(self) -> str:
            return f"held by {SAID}"

    async def first_is_slow(row: Any) -> None:
        if type(row) is Row:
            await asyncio.sleep(60.0)

    async def script() -> list[str]:
        job = Job(first_is_slow, capacity=2)
        job.push(Row(), *range(50))
        await asyncio.sleep(30.0)
        waits = [*job.statistics().waits]
        await job.end()
        return waits

    (text,) = play(script)
    for shown in (text, caplog.text):
        assert "held by no: " in shown
        assert steering_in(shown) == []


@pytest.mark.contract("No report steers what shows it.")
def test_no_report_steers_what_shows_it(tmp_path: Path) -> None:
    odd = type("Error" + SAID.replace("\0", ""), (Exception,), {})

    async def fail_oddly(row: Any) -> Any:
        raise odd("no")

    job = async_map(["a"], fail_oddly, errors="null")
    assert list(job) == [None]
    page = report(job, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Errorno" in page
    assert steering_in(page) == []


@pytest.mark.contract("The ledger's command shows no answer that steers a terminal.")
def test_the_command_of_a_ledger_steers_no_terminal(tmp_path: Path) -> None:
    async def answer(row: Any) -> str:
        return SAID

    list(async_map(["a"], answer, ledger=Ledger(str(tmp_path), uid="a", run="1")))
    words = [sys.executable, "-m", "pillarbox", "ledger", "show", str(tmp_path)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "no: " in shown
    assert steering_in(shown) == []


@pytest.mark.contract("Line feeds and tabs of an error stay; a carriage return before a line feed goes.")
def test_lines_of_an_ordinary_error_stay() -> None:
    text = "first:\n\tsecond\n\n    third é 漢字 \N{SMILING FACE WITH SUNGLASSES} مرحبا שלום"
    assert Redact().text(text) == text
    assert Redact().text(text.replace("\n", "\r\n")) == text
    assert Redact().text("100 %\r200 %") == "100 %\\r200 %"


@settings(max_examples=examples(300), deadline=None)
@given(st.text(st.sampled_from([*STEERING, *"ab\\\r\n\t é\ud83d"]), max_size=20))
def test_only_what_steers_is_changed(text: str) -> None:
    shown = Redact().text(text)
    assert steering_in(shown) == []
    shown.encode()
    assert Redact().text(shown) == shown
    # Read back, each escape is the character that it stands for.
    plain = text.replace("\r\n", "\n").replace("\\", "")
    escapes = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|(r))")
    back = escapes.sub(
        lambda found: "\r" if found[3] else chr(int(found[1] or found[2], 16)), Redact().text(plain)
    )
    assert back == plain.replace("\r\n", "\n")
