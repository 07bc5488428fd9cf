"""Options whose internal intervals a test chooses."""

from __future__ import annotations

from typing import Any

from pillarbox.aio.options import Intervals, Options


def options_with(intervals: Intervals, **options: Any) -> Options:
    """Options as users give them, with these intervals."""

    class Chosen(Options):
        pass

    Chosen.intervals = intervals
    return Chosen(**options)
