"""CallDeadlines of calls with one time to live."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pillarbox.aio.deadlines import CallDeadlines


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
    deadlines = CallDeadlines[str](clock, 10.0, expired.append)
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
    assert deadlines.oldest() is None


def test_a_cancelled_key_does_not_expire_and_leaves_nothing(clock: Clock) -> None:
    expired: list[str] = []
    deadlines = CallDeadlines[str](clock, 10.0, expired.append)
    handle = deadlines.arm("a")
    deadlines.arm("b")
    deadlines.cancel(handle)
    deadlines.cancel(handle)
    deadlines.cancel(-1)
    assert deadlines.oldest() == ("b", 110.0)
    clock.pass_to(200.0)
    assert expired == ["b"]
    assert deadlines.oldest() is None


def test_one_timer_serves_all_keys(clock: Clock) -> None:
    deadlines = CallDeadlines[int](clock, 10.0, lambda key: None)
    for key in range(1000):
        deadlines.arm(key)
    assert len(clock._scheduled) == 1  # type: ignore[attr-defined]


def test_an_expiry_may_arm_its_key_again(clock: Clock) -> None:
    expired: list[float] = []

    def again(key: str) -> None:
        expired.append(clock.now)
        if len(expired) < 3:
            deadlines.arm(key)

    deadlines = CallDeadlines[str](clock, 10.0, again)
    deadlines.arm("a")
    for now in (110.0, 120.0, 130.0):
        clock.pass_to(now)
    assert expired == [110.0, 120.0, 130.0]


def test_an_expiry_may_cancel_what_expires_with_it(clock: Clock) -> None:
    expired: list[str] = []
    handles: list[int] = []

    def cancel_the_others(key: str) -> None:
        expired.append(key)
        for handle in handles:
            deadlines.cancel(handle)

    deadlines = CallDeadlines[str](clock, 10.0, cancel_the_others)
    handles += [deadlines.arm(key) for key in "abc"]
    clock.pass_to(200.0)
    assert expired == ["a"]
    handles.clear()
    deadlines.arm("d")
    clock.pass_to(300.0)
    assert expired == ["a", "d"]


def test_a_deadline_that_is_armed_by_an_expiry_and_due_at_once_waits_for_the_next_turn(clock: Clock) -> None:
    turns = 0

    def again(key: str) -> None:
        nonlocal turns
        turns += 1
        clock.now += 20.0
        deadlines.arm(key)

    deadlines = CallDeadlines[str](clock, 10.0, again)
    deadlines.arm("a")
    clock.pass_to(110.0)
    assert turns <= 2  # as many as `pass_to` gives the loop
    deadlines.close()


def test_the_time_of_the_loop_counts(clock: Clock) -> None:
    usual = asyncio.SelectorEventLoop()
    deadlines = CallDeadlines[str](usual, 10.0, print)
    before = usual.time()
    deadlines.arm("a")
    after = usual.time()
    oldest = deadlines.oldest()
    assert oldest is not None and before + 10.0 <= oldest[1] <= after + 10.0
    deadlines.close()
    usual.close()


def test_after_close_nothing_expires(clock: Clock) -> None:
    expired: list[str] = []
    deadlines = CallDeadlines[str](clock, 10.0, expired.append)
    deadlines.arm("a")
    deadlines.close()
    clock.pass_to(200.0)
    assert expired == []
    assert deadlines.oldest() is None
