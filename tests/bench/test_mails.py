"""The ways to the mailbox thread that docs/architecture.md names, counted by `python -m bench.mails`."""

from __future__ import annotations

from bench.mails import (
    BY_TIME,
    after_a_while,
    at_once,
    by_operator,
    by_pool,
    by_threads,
    cancel,
    coroutine,
    costs,
    count,
    hangs,
)
from pillarbox import Errors

ROWS = 300


def test_answers_of_coroutines_call_the_loop_from_no_other_thread() -> None:
    mails, loop = count(coroutine, ROWS, capacity=16)
    assert not loop.crossings and 0 < mails < ROWS


def test_answers_of_threads_are_mail_and_wake_the_loop_once_for_all_that_have_come() -> None:
    for fn in (at_once, after_a_while):
        mails, loop = count(fn, ROWS, capacity=16)
        # The step of the mailbox: what the first mail for a mailbox that sleeps schedules.
        assert {*loop.crossings} == {"_step"}
        assert loop.crossings["_step"] <= mails


def test_a_time_out_is_a_timer_of_the_loop() -> None:
    _, loop = count(hangs, ROWS, capacity=100, timeout=0.01, errors=Errors("null", floor=None))
    assert not loop.crossings and {*loop.timers} - BY_TIME == {"_fire"}


def test_a_cancellation_by_another_thread_is_one_call_of_the_loop() -> None:
    _, loop = count(coroutine, ROWS, cancel, capacity=16)
    assert loop.crossings == {"_stop": 1}


def test_a_call_in_a_thread_gives_its_core_away_at_least_once_however_it_is_made() -> None:
    for job in (by_operator, by_pool, by_threads):
        cpu, system, switches = costs(job, ROWS)
        # It sleeps. Differences of clocks that read times of the day are rounded by the last digit.
        assert round(cpu, 6) >= round(system, 6) >= 0 and switches > 0.9
