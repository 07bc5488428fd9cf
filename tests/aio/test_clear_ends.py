"""However a job ends, one clear line says why: Ctrl-C, groups of errors, threads left behind, not opened."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest

from pillarbox import CallFailed, PillarboxError, Retry, async_map
from pillarbox.wire import is_overload, leaves
from tests.aio.virtual import Job, play
from tests.threads import begun

# -- what cannot be opened --------------------------------------------------------------------


class Client:
    async def __aenter__(self) -> Client:
        raise OSError("no route to host")

    async def __aexit__(self, *_: object) -> None: ...

    async def __call__(self, row: int) -> int:
        return row


class Pool:
    def __enter__(self) -> Pool:
        raise OSError("no route to host")

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, row: int) -> int:
        return row


async def _first(fn: Any) -> None:
    await async_map(range(3), fn).__anext__()


@pytest.mark.contract
@pytest.mark.parametrize("way", ["for", "async for"])
@pytest.mark.parametrize(("fn", "method"), [(Client(), "__aenter__"), (Pool(), "__enter__")])
def test_a_function_that_cannot_be_opened_is_named_with_what_opening_raised(
    fn: Any, method: str, way: str
) -> None:
    def by_for() -> None:
        next(async_map(range(3), fn))

    run = by_for if way == "for" else lambda: play(lambda: _first(fn))
    with pytest.raises(PillarboxError) as failed:
        run()
    assert type(failed.value).__name__ == "OpenFailed"
    assert str(failed.value) == (
        f"{type(fn).__name__} could not be opened: its {method} raised OSError: no route to host"
    )
    assert isinstance(failed.value.__cause__, OSError)
    for thread in begun():
        thread.join()
        assert not thread.is_alive()


# -- texts and groups -------------------------------------------------------------------------


def test_an_error_text_of_a_megabyte_is_cut_wherever_it_is_shown() -> None:
    async def call(row: int) -> int:
        raise ValueError(f"answer {row}: " + "x" * 1_000_000)

    with pytest.raises(CallFailed) as failed:
        list(async_map(range(3), call))
    text = str(failed.value)
    assert "ValueError: answer 0: xxx" in text
    assert text.endswith("x…")
    assert len(text) < 1200
    assert "\n" not in text
    assert len(str(failed.value.with_trace())) < 8000
    ((_, error),) = async_map([0], call, errors="column")
    assert error is not None and len(error.message) <= 1000
    # The error itself is whole.
    assert len(str(failed.value.cause)) > 1_000_000


def test_a_traceback_of_many_lines_is_cut_in_the_middle() -> None:
    error = ValueError("line\n" * 100_000)
    text = str(CallFailed(1, error).with_trace())
    assert len(text.splitlines()) < 500


class Group(Exception):
    """Has the shape of an ExceptionGroup, also for Python 3.10."""

    def __init__(self, text: str, errors: list[Exception]) -> None:
        super().__init__(text)
        self.exceptions = tuple(errors)

    def derive(self, errors: list[Exception]) -> Group:
        return Group(str(self), errors)


class Busy(Exception):
    status = 429


def test_a_group_of_errors_says_what_its_members_say() -> None:
    inner = Group("inner", [ValueError("bad"), KeyError("k")])
    group = Group("unhandled errors in a TaskGroup (2 sub-exceptions)", [ConnectionError("refused"), inner])
    assert [*leaves(group)] == [group.exceptions[0], *inner.exceptions]
    assert CallFailed(1, group).reason == (
        "unhandled errors in a TaskGroup (2 sub-exceptions): ConnectionError: refused; ValueError: bad; "
        "KeyError: 'k'"
    )
    many = Group("many", [ValueError(str(number)) for number in range(10)])
    assert CallFailed(1, many).reason == "many: ValueError: 0; ValueError: 1; ValueError: 2; and 7 more"
    assert is_overload(Group("one", [Busy("slow down")]))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="task groups came with Python 3.11")
def test_a_task_group_that_fails_is_said_with_its_cause() -> None:
    async def call(row: int) -> int:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]
            group.create_task(refuse())
        return row

    async def refuse() -> None:
        raise ConnectionError("refused")

    with pytest.raises(CallFailed, match=r"TaskGroup \(1 sub-exception\): ConnectionError: refused$"):
        list(async_map(range(2), call))


@pytest.mark.parametrize(
    ("members", "attempts"),
    [([ConnectionError("a"), ConnectionError("b")], 3), ([ConnectionError("a"), ValueError("b")], 1)],
)
def test_a_group_is_tried_again_if_each_of_its_errors_is(members: list[Exception], attempts: int) -> None:
    async def script() -> int:
        calls = 0

        async def call(row: int) -> int:
            nonlocal calls
            calls += 1
            raise Group("group", members)

        job = Job(call, retry=Retry(3, on=ConnectionError), errors="null")
        job.push(1)
        await job.end()
        return calls

    assert play(script) == attempts


# -- Ctrl-C -----------------------------------------------------------------------------------

PROGRAM = """
import asyncio, itertools, sys, threading, _thread
from pillarbox import async_map

phase, signalled = sys.argv[1:]
never = threading.Event()


def here(now):
    if phase == now:
        print("here", flush=True)
        if signalled == "by itself":
            _thread.interrupt_main()
        return True
    return False


class Client:
    async def __aenter__(self):
        if here("open"):
            await asyncio.Event().wait()
        return self

    async def __aexit__(self, *_):
        print("closed", flush=True)

    async def __call__(self, row):
        if here("call"):
            await asyncio.Event().wait()
        return row


def plain(row):
    if here("thread"):
        never.wait()
    return row


async def main():
    async for row in async_map(range(3), Client()):
        pass


if phase == "async for":
    phase = "call"
    asyncio.run(main())
# One call at a time: threads that print at once share a line. Rows without end: a run whose rows are all done
# closes its client at once, whatever the body is at.
for row in async_map(itertools.count(), plain if phase == "thread" else Client(), capacity=1):
    if here("body"):
        # Without a GIL, CPython 3.13 does not notice a signal that comes while a lock spins before it blocks.
        while not never.wait(1.0):
            pass
"""


def _start(phase: str, signalled: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, phase, signalled]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _assert_ended_by_ctrl_c(process: subprocess.Popen[str], phase: str, out: str, err: str) -> None:
    assert process.returncode == -signal.SIGINT, err
    assert err.rstrip().splitlines()[-1] == "KeyboardInterrupt"
    # What asyncio.run makes of it has two of its own.
    assert err.count("Traceback") == (2 if phase == "async for" else 1), err
    assert "could not be closed" not in err
    if phase not in ("open", "thread"):
        assert "closed" in out


IN_A_CALL = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Ctrl-C is an error of the call that runs, before Python 3.11"
)


@pytest.mark.contract
@pytest.mark.parametrize(
    "phase", ["open", "call", "thread", "body", pytest.param("async for", marks=IN_A_CALL)]
)
def test_ctrl_c_ends_the_program_with_one_traceback_whatever_it_was_at(phase: str) -> None:
    with _start(phase, "from outside") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        finally:
            process.kill()
    _assert_ended_by_ctrl_c(process, phase, out, err)


@pytest.mark.parametrize("phase", ["open", "call", "thread"])
def test_ctrl_c_that_interrupts_no_wait_of_the_main_thread_is_noticed_all_the_same(phase: str) -> None:
    with _start(phase, "by itself") as process:
        try:
            out, err = process.communicate()
        finally:
            process.kill()
    _assert_ended_by_ctrl_c(process, phase, out, err)
