"""Rows that are looked up in a ledger while another attempt records: each record is found in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pillarbox import Ledger, Redact
from pillarbox.aio.calls import Call
from pillarbox.aio.ledger_lookup import LedgerLookup
from pillarbox.aio.ledger_rows import LedgerRows
from pillarbox.aio.ledger_scope import scope_of
from pillarbox.ledger.keys import identity_of_values
from pillarbox.ledger.ledger import shared_reader


@pytest.mark.parametrize("hook", ["may_have_any", "search"])
def test_a_row_whose_record_comes_in_during_its_look_up_is_to_be_looked_up_again(
    tmp_path: Path, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path, uid="u", run="r", key=["id"])
    scope = scope_of(ledger, "r")
    reader = shared_reader(ledger, scope)
    identify = identity_of_values(["id"], None)
    rows = LedgerRows(ledger, identify, execution=b"e" * 16, alone=True, redact=Redact())
    lookup = LedgerLookup(
        reader, rows, None, convert=None, rows_of=None, is_local=True, at_first_miss=lambda: False
    )
    if hook == "may_have_any":
        # From the first miss on, rows are asked for all together.
        assert lookup.look_up([Call({"id": 0}, 0)]) == []
    call = Call({"id": 1}, 0)
    key, given = identify(call.row)
    found = getattr(reader, hook)

    def found_before(*words: Any, **more: Any) -> Any:
        answer = found(*words, **more)
        # The writer asks too.
        monkeypatch.undo()
        other = ledger.writer(scope, reader, execution=b"f" * 16)
        other.append(key, "theirs", input=given)
        other.close()
        # As by a scan of another process's segment.
        reader.scans += 1
        return answer

    monkeypatch.setattr(reader, hook, found_before)
    assert lookup.look_up([call]) == []
    assert call.looked != reader.scans
    assert lookup.find(call) == ("theirs",)
