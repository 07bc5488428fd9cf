"""Lets files be taken as soon as a test has written them; those that are about resting say `settle`."""

from __future__ import annotations

import pytest

from pillarbox.sources.connectors import file_discovery as discovery


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "SETTLE_S", 0.0)
