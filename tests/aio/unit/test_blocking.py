"""Code that blocks the event loop is noticed: in the time accounts, by a warning, in the report's advice."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Batch, CallTimeout, Options, Timeout, async_map
from pillarbox.aio import loop_watcher, task_run
from pillarbox.aio.intervals import Intervals
from pillarbox.aio.loop_watcher import LATE_AFTER_S, WARN_AFTER_S, LoopWatcher
from pillarbox.aio.observe import report
from pillarbox.loop_thread import LAST_WAIT_S, LoopThread
from tests.aio.unit.intervals import choose
from tests.aio.virtual import Job, play
from tests.waiting import wait_until


class Warnings(logging.Handler):
    """Keeps the warnings of blocked loops; `there` is set when there is one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self.there = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "blocks it" in record.getMessage():
            self.texts.append(record.getMessage())
            self.there.set()


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warnings]:
    if not loop_watcher.CAN_READ_FRAMES:
        pytest.skip("without a GIL, frames of a thread that runs cannot be read, and nothing looks at them")
    monkeypatch.setattr(loop_watcher, "_warned", set())
    warnings = Warnings()
    logger = logging.getLogger("pillarbox")
    logger.addHandler(warnings)
    yield warnings
    logger.removeHandler(warnings)


# -- the warning ------------------------------------------------------------------------------


class Clock:
    """Seconds that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class BlockedLoop:
    """A loop in a thread whose coroutine is in `hold` until the end; `look` moves the clock and looks."""

    def __init__(self, hold: Callable[[BlockedLoop], Coroutine[Any, Any, None]]) -> None:
        self.clock = Clock()
        self.let_go = threading.Event()
        self.there = threading.Event()
        self._hold = hold
        self._thread = LoopThread("blocked", asyncio.new_event_loop)

    def __enter__(self) -> BlockedLoop:
        async def watch() -> LoopWatcher:
            return LoopWatcher("lookup", self.clock)

        self.watcher = self._thread.submit(watch()).result()
        self.ended = self._thread.submit(self._hold(self))
        assert self.there.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go.set()
        self.ended.result()
        self._thread.close(30)

    def look(self, seconds: float) -> None:
        self.clock.now += seconds
        self.watcher.look()

    def wait_until_idle(self) -> None:
        wait_until(lambda: not loop_watcher.user_frames(sys._current_frames()[self.watcher._loop_thread]))

    def turn(self, seconds: float) -> None:
        """So long the loop has had its turns."""
        self.clock.now += seconds
        self.watcher.beat()
        self.watcher.look()


async def block(loop: BlockedLoop) -> None:
    loop.there.set()
    loop.let_go.wait(30)  # the line that blocks


async def wait(loop: BlockedLoop) -> None:
    loop.there.set()
    await asyncio.to_thread(loop.let_go.wait, 30)


@pytest.mark.contract("A short task starts no thread that looks for code that blocks its loop.")
def test_a_short_task_starts_no_thread_that_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_run, "WATCH_AFTER_S", 60.0)
    watched: list[str] = []

    async def look(row: int) -> int:
        watched.extend(each.name for each in threading.enumerate() if "-watch-" in each.name)
        return row

    assert list(async_map(range(10), look)) == [*range(10)]
    assert watched == []


@pytest.mark.contract
def test_a_second_of_blocking_gives_one_warning_with_the_stack_of_the_code(warned: Warnings) -> None:
    with BlockedLoop(block) as loop:
        loop.look(LATE_AFTER_S)
        loop.look(WARN_AFTER_S - 2 * LATE_AFTER_S)
        assert warned.texts == []
        loop.look(2 * LATE_AFTER_S)
        (text,) = warned.texts
        assert "event loop of lookup blocks it, for 1.0 s so far" in text
        assert "loop.let_go.wait(30)  # the line that blocks" in text
        assert "to_thread" in text
        for _ in range(20):
            loop.look(WARN_AFTER_S)
        assert len(warned.texts) == 1


def test_a_loop_that_waits_or_has_its_turns_is_not_warned_of(warned: Warnings) -> None:
    with BlockedLoop(wait) as loop:
        loop.wait_until_idle()
        # As where the machine gives the thread no time: the beat is late, and no code is to blame.
        loop.look(2 * WARN_AFTER_S)
    with BlockedLoop(block) as loop:
        for _ in range(100):
            loop.look(0.9 * LATE_AFTER_S)
            loop.turn(0.0)
    assert warned.texts == []


def test_short_blocks_add_up_and_rare_ones_do_not(warned: Warnings) -> None:
    def blocked_by(share: float) -> None:
        with BlockedLoop(block) as loop:
            for _ in range(200):
                loop.turn(0.2 / share - 0.2)
                loop.look(0.2)

    blocked_by(0.02)
    assert warned.texts == []
    blocked_by(0.5)
    assert len(warned.texts) == 1


def test_each_function_is_warned_of_once(warned: Warnings) -> None:
    async def other(loop: BlockedLoop) -> None:
        await block(loop)

    for hold in (block, other, block):
        with BlockedLoop(hold) as loop:
            loop.look(2 * WARN_AFTER_S)
    assert len(warned.texts) == 2


def test_each_line_of_a_function_is_warned_of_once(warned: Warnings) -> None:
    async def twice(loop: BlockedLoop) -> None:
        loop.there.set()
        loop.let_go.wait(30)  # the first line
        loop.let_go.clear()
        second.set()
        loop.let_go.wait(30)  # the second line

    second = threading.Event()
    for _ in range(2):
        with BlockedLoop(twice) as loop:
            loop.look(2 * WARN_AFTER_S)
            loop.let_go.set()
            assert second.wait(30)
            second.clear()
            while loop.let_go.is_set():
                pass
            for _ in range(3):
                loop.look(WARN_AFTER_S)
    first, other = warned.texts
    assert "# the first line" in first
    assert "# the second line" in other


def test_an_import_of_pillarboxs_own_is_no_code_of_the_user_and_hides_none(
    warned: Warnings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import pillarbox_tests_hook\npillarbox_tests_hook.hold()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    frames: list[str] = []

    def hold() -> None:
        frame = sys._getframe()
        # As where a part of Pillarbox imports while it decodes a value.
        frames.extend(each.f_code.co_filename for each in loop_watcher.user_frames(frame))
        frames.append("end")

    hook: Any = types.ModuleType("pillarbox_tests_hook")
    hook.hold = hold
    monkeypatch.setitem(sys.modules, "pillarbox_tests_hook", hook)
    source = "def decode():\n    import slow_to_import\n"
    names: dict[str, Any] = {}
    exec(compile(source, str(Path(loop_watcher.__file__).with_name("decoding.py")), "exec"), names)

    async def ours(row: int) -> int:
        names["decode"]()
        return row

    async def theirs(row: int) -> int:
        import slow_to_import  # noqa: F401

        return row

    assert [*async_map([1], ours)] == [1]
    assert frames == ["end"]
    monkeypatch.delitem(sys.modules, "slow_to_import")
    frames.clear()
    assert [*async_map([1], theirs)] == [1]
    # An import of the user's is his code, without what Python does for it.
    assert frames[0] == __file__
    assert not any("importlib" in each for each in frames)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the watcher warn soon."""
    monkeypatch.setattr(loop_watcher, "WARN_AFTER_S", 0.1)
    monkeypatch.setattr(loop_watcher, "LOOK_INTERVAL_S", 0.01)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", ["row", "batch", "consumer"])
def test_code_that_blocks_is_warned_of_while_it_blocks(kind: str, warned: Warnings) -> None:
    async def lookup(row: int) -> int:
        return held(row)

    async def lookup_all(rows: list[int]) -> list[int]:
        return [held(row) for row in rows]

    async def identity(row: int) -> int:
        return row

    async def endless() -> AsyncIterator[int]:
        yield 0
        await asyncio.Event().wait()

    async def consume() -> list[int]:
        async with async_map(endless(), identity) as results:
            return [held(await results.__anext__()), 1, 2]

    def held(row: int) -> int:
        assert warned.there.wait(60)
        return row

    if kind == "row":
        found = list(async_map(range(3), lookup))
    elif kind == "batch":
        found = list(async_map(range(3), lookup_all, batch=Batch(3)))
    else:
        found = asyncio.run(consume())
    assert found == [0, 1, 2]
    (text,) = warned.texts
    assert "in held" in text
    assert "assert warned.there.wait(60)" in text


@pytest.mark.contract(convicts=["threads_share_context"])
@pytest.mark.usefixtures("hasty")
def test_a_plain_function_may_block_as_long_as_it_likes(warned: Warnings) -> None:
    def lookup(row: int) -> int:
        time.sleep(0.05)
        return row

    assert list(async_map(range(8), lookup, capacity=2)) == [*range(8)]
    assert warned.texts == []


# -- the accounts and the advice --------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize(("rows", "seconds"), [(6, 20.0), (150, 1.0)])
def test_the_time_of_calls_that_block_is_that_of_the_loop_and_so_is_the_advice(
    rows: int, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that the calls move: beside it the machine's own time is nothing.
    monotonic, blocked = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + blocked)
    monkeypatch.setattr(LoopThread.__init__, "__defaults__", (asyncio.new_event_loop, LAST_WAIT_S))

    async def lookup(row: int) -> int:
        nonlocal blocked
        blocked += seconds
        return row

    results = async_map(range(rows), lookup, capacity=50)
    assert sum(1 for _ in results) == rows
    counts = results.statistics()
    assert counts is not None
    assert max(counts.spent, key=lambda name: counts.spent[name]) == "loop"
    assert counts.spent["loop"] >= 0.8 * rows * seconds
    pytest.importorskip("jinja2", reason="the report needs it")
    page = report(results, tmp_path / "report.html").read_text()
    assert "held the event loop up, so that calls waited for one another" in page
    assert "larger partitions" not in page


def test_calls_that_wait_leave_the_loop_free() -> None:
    async def lookup(row: int) -> int:
        await asyncio.sleep(1.0)
        return row

    async def script() -> dict[str, float]:
        job = Job(lookup, capacity=10)
        job.push(*range(100))
        await job.end()
        return job.statistics().spent

    spent = play(script)
    assert spent["loop"] == 0.0
    assert sum(spent.values()) > 0.0


@pytest.mark.parametrize("limit", ["timeout", "timeout.attempt"])
def test_a_batch_that_blocks_the_loop_is_found_and_named(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, Intervals(stall_timeout=0.05, close_timeout=0.05))
    options = Options()
    release = threading.Event()

    async def blocks(rows: list[int]) -> list[int]:
        release.wait(30)
        return rows

    timeout = {"timeout": Timeout(0.1), "timeout.attempt": Timeout(attempt=0.1)}[limit]
    with pytest.raises(CallTimeout) as caught:
        list(async_map([7, 8], blocks, batch=Batch(2), timeout=timeout, options=options))
    release.set()
    assert (caught.value.limit, caught.value.seconds, caught.value.row) == (limit, 0.1, "7")
    assert "release.wait(30)" in str(caught.value)
