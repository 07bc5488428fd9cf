"""The page of the wire shows the table that answers and errors are read by."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from pillarbox.wire import kind_of_finish, kind_of_status, read_error
from pillarbox.wire_table import TABLE, TRAITS, Kind

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_the_wire_shows_the_table() -> None:
    spec = importlib.util.spec_from_file_location("wire_page", ROOT / "docs" / "wire.py")
    assert spec is not None and spec.loader is not None
    wire_page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wire_page)
    assert wire_page.PAGE.read_text() == wire_page.page(), "python docs/wire.py"


def test_each_kind_has_its_traits_and_no_event_stands_twice() -> None:
    assert set(TRAITS) == set(Kind)
    named = [
        (rule.by, name, status) for rule in TABLE for name in rule.names for status in rule.only_with or (0,)
    ]
    assert len(named) == len(set(named))


def test_each_rule_of_the_table_is_read() -> None:
    for rule in TABLE:
        for name in rule.names:
            if rule.by == "status":
                assert kind_of_status(int(name)) is rule.kind
            elif rule.by == "finish":
                assert kind_of_finish(name.upper().replace("_", "-")) is rule.kind
            elif rule.by == "error":
                assert read_error(type(name, (Exception,), {"message": name})()).kind is rule.kind, name
