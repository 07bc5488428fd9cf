"""Receivers of progress: a `Progress`, or an object that gives a channel for each operator. No session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pillarbox.aio.totals import Totals
from pillarbox.spark import Progress
from pillarbox.spark.observation import check_progress


class Reporter:
    def close(self) -> None:
        pass


class Channel:
    def reporter(self, totals: Callable[[], Totals | None]) -> Reporter:
        return Reporter()


class Observer:
    def new_operator(self) -> Channel:
        return Channel()


def test_a_progress_and_what_is_like_one_are_taken() -> None:
    for progress in (None, Progress(bar=False), Observer()):
        check_progress(progress)


@pytest.mark.parametrize("progress", [1, "progress", Progress, Observer, Channel()])
def test_anything_else_is_refused_by_name(progress: object) -> None:
    with pytest.raises(TypeError, match=r"^progress=.*: must be a pillarbox.spark.Progress or None$"):
        check_progress(progress)
