"""Deadlines of calls with one time to live."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pillarbox.aio.deadlines import Deadlines


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time is set by the test."""

    now = 100.0

    def time(self) -> float:
        return self.now

    def pass_to(self, now: float) -> None:
        self.now = now
        self.call_soon(self.stop)
        self.run_forever()
        self.call_soon(self.stop)
        self.run_forever()


@pytest.fixture
def clock() -> Iterator[Clock]:
    loop = Clock()
    yield loop
    loop.close()


def test_keys_expire_in_the_order_in_which_they_were_armed(clock: Clock) -> None:
    expired: list[str] = []
    deadlines = Deadlines[str](clock, 10.0, expired.append)
    for now, key in ((100.0, "a"), (101.0, "b"), (105.0, "c")):
        clock.now = now
        deadlines.arm(key)
    assert deadlines.oldest() == ("a", 110.0)
    clock.pass_to(109.9)
    assert expired == []
    clock.pass_to(111.0)
    assert expired == ["a", "b"]
    clock.pass_to(115.0)
    assert expired == ["a", "b", "c"]
    assert len(deadlines) == 0


def test_a_cancelled_key_does_not_expire_and_leaves_nothing(clock: Clock) -> None:
    expired: list[str] = []
    deadlines = Deadlines[str](clock, 10.0, expired.append)
    deadlines.arm("a")
    deadlines.arm("b")
    deadlines.cancel("a")
    deadlines.cancel("never armed")
    assert len(deadlines) == 1
    clock.pass_to(200.0)
    assert expired == ["b"]


def test_one_timer_serves_all_keys(clock: Clock) -> None:
    deadlines = Deadlines[int](clock, 10.0, lambda key: None)
    for key in range(1000):
        deadlines.arm(key)
    assert len(clock._scheduled) == 1  # type: ignore[attr-defined]


def test_an_expiry_may_arm_its_key_again(clock: Clock) -> None:
    expired: list[float] = []

    def again(key: str) -> None:
        expired.append(clock.now)
        if len(expired) < 3:
            deadlines.arm(key)

    deadlines = Deadlines[str](clock, 10.0, again)
    deadlines.arm("a")
    for now in (110.0, 120.0, 130.0):
        clock.pass_to(now)
    assert expired == [110.0, 120.0, 130.0]


def test_after_close_nothing_expires(clock: Clock) -> None:
    expired: list[str] = []
    deadlines = Deadlines[str](clock, 10.0, expired.append)
    deadlines.arm("a")
    deadlines.close()
    clock.pass_to(200.0)
    assert expired == []
    assert deadlines.oldest() is None
