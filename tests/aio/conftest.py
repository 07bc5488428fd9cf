"""Fixtures of the operator's tests."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox.rpc.loop_thread import LAST_WAIT_S, LoopThread


@pytest.fixture(params=["asyncio", "uvloop"])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the operator run on asyncio's event loop, then on uvloop's, whatever it would take by itself."""
    if request.param == "asyncio":
        new_loop = asyncio.new_event_loop
    else:
        new_loop = pytest.importorskip("uvloop").new_event_loop
    monkeypatch.setattr(LoopThread.__init__, "__defaults__", (new_loop, LAST_WAIT_S))
