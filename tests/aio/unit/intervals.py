"""The intervals of operators, which a test chooses."""

from __future__ import annotations

import pytest

from pillarbox.aio import intervals
from pillarbox.aio.intervals import Intervals


def choose(monkeypatch: pytest.MonkeyPatch, chosen: Intervals) -> None:
    """Have operators, tasks and sessions with a ledger take these from now on."""
    monkeypatch.setattr(intervals, "INTERVALS", chosen)
