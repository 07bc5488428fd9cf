"""The cost of a round of a task's loop without mail, above the call of the default action itself.

The target is 100 ns. The loops of a group differ in what calls the action; the first is a plain `for`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import repeat

import pytest

from bench.conftest import Chunks
from pillarbox.mailbox.processor import Controller, MailboxProcessor

MANY = 1_000
TARGET = 100.0
"""Nanoseconds of a round above the action."""

an_idle_round = pytest.mark.benchmark(group="a round of the loop: the default action, no mail")
a_round_with_mail = pytest.mark.benchmark(group="a round of the loop: the default action and one mail")


class Action:
    """Counts, and suspends the loop after a thousand calls."""

    def __init__(self) -> None:
        self.left = MANY
        self.suspend: Callable[[], object] = int

    def __call__(self, controller: Controller) -> None:
        self.left -= 1
        if not self.left:
            self.left = MANY
            self.suspend()


def looping(**options: object) -> MailboxProcessor:
    action = Action()
    processor = MailboxProcessor(action, **options)  # type: ignore[arg-type]
    action.suspend = processor.suspend
    return processor


def calls() -> Callable[[], None]:
    """A thousand calls of the action, by nobody in particular."""
    action, controller = Action(), Controller(MailboxProcessor(Action()))

    def run() -> None:
        for _ in repeat(None, MANY):
            action(controller)

    return run


@an_idle_round
def test_the_calls_alone(chunks: Chunks) -> None:
    chunks(calls(), MANY)


@an_idle_round
def test_the_loop(chunks: Chunks) -> None:
    chunks(looping().run_mailbox_loop, MANY)


@an_idle_round
def test_steps(chunks: Chunks) -> None:
    processor = looping()

    def run() -> None:
        step = processor.run_mailbox_step
        for _ in repeat(None, MANY):
            step()

    chunks(run, MANY)


@an_idle_round
def test_the_loop_beside_coroutines(chunks: Chunks) -> None:
    processor, loop = looping(), asyncio.new_event_loop()
    chunks(lambda: loop.run_until_complete(processor.run_async()), MANY, rounds=100)
    loop.close()


@a_round_with_mail
def test_the_loop_with_a_mail_that_puts_itself_again(chunks: Chunks) -> None:
    processor = looping()
    executor = processor.executor()

    def again() -> None:
        executor.execute(again)

    again()
    chunks(processor.run_mailbox_loop, MANY, rounds=200)


@a_round_with_mail
def test_the_calls_and_a_mail_that_puts_itself_again_alone(chunks: Chunks) -> None:
    action, controller = Action(), Controller(MailboxProcessor(Action()))
    processor = looping()
    executor, mailbox = processor.executor(), processor.mailbox

    def again() -> None:
        executor.execute(again)

    again()

    def run() -> None:
        for _ in repeat(None, MANY):
            mail = mailbox.try_take()
            assert mail is not None
            mail.run()
            action(controller)

    chunks(run, MANY, rounds=200)


def test_an_idle_round_costs_less_than_the_target() -> None:
    """The fastest chunks of each, taken in turns: the rest of the machine makes them slower, never faster."""
    alone, loop = calls(), looping().run_mailbox_loop
    best = {alone: float("inf"), loop: float("inf")}
    for _ in range(300):
        for contender in best:
            begin = time.perf_counter_ns()
            contender()
            best[contender] = min(best[contender], (time.perf_counter_ns() - begin) / MANY)
    above = best[loop] - best[alone]
    print(f"\naction {best[alone]:.1f} ns, round {best[loop]:.1f} ns, above the action {above:.1f} ns")
    assert above < TARGET
