"""Texts with half a character (a lone surrogate), as of a reply cut in an emoji, on their ways out."""

from __future__ import annotations

import json
import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from pillarbox import CallFailed, Errors, Ledger, Redact, async_map

CUT = "not JSON: cut \ud83d"
ESCAPED = "not JSON: cut \\ud83d"


async def fail(row: Any) -> Any:
    raise ValueError(CUT)


def in_utf8(text: str) -> str:
    text.encode()
    return text


@pytest.mark.contract
@pytest.mark.parametrize("redact", [None, Redact(lambda text: text + "\udc80")])
def test_an_error_whose_text_has_half_a_character_is_told_with_its_escape(redact: Redact | None) -> None:
    (outcome,) = async_map(["a \udcff"], fail, errors=Errors("column", redact=redact))
    assert outcome.error is not None
    assert outcome.error.type == "ValueError"
    assert ESCAPED in in_utf8(outcome.error.message)
    with pytest.raises(CallFailed, match="not JSON") as found:
        list(async_map(["a \udcff"], fail, errors=Errors(redact=redact)))
    printed = "".join(traceback.format_exception(found.value))
    assert ESCAPED in in_utf8(printed)
    # The function's own error is as it was.
    assert str(found.value.cause) == CUT


@pytest.mark.contract
def test_half_a_character_is_in_no_dead_letter_no_log_line_and_no_ledger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pillarbox")
    errors = Errors("column", dead_letter=str(tmp_path / "dead.jsonl"))
    ledger = Ledger(str(tmp_path / "ledger"), uid="a", run="1", retry_errors=False)
    for _ in range(2):
        (outcome,) = async_map([{"text": "a \udcff"}], fail, errors=errors, ledger=ledger)
        assert outcome.error is not None
        assert outcome.error.message == ESCAPED
    for line in (tmp_path / "dead.jsonl").read_text().splitlines():
        assert json.loads(line)["_error"]["message"] == ESCAPED
    logging.getLogger("pillarbox").warning("a line with %s", CUT)
    logging.getLogger("pillarbox").warning("an error", exc_info=ValueError(CUT))
    for record in caplog.records:
        in_utf8(logging.Formatter().format(record))
    assert ESCAPED in caplog.text
