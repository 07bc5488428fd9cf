"""A mailbox among several threads: nothing lost, nothing twice, nobody left asleep, Ctrl-C."""

import itertools
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pillarbox.kernel import Handover, Mail, MailboxClosedError, TaskMailbox
from tests.kernel.asleep import look, needs_looks, wait_until_asleep

pytestmark = pytest.mark.usefixtures("each_backend")

LONG = 30.0
"""Seconds after which a wait that a defect leaves asleep gives up: the test fails before its time-out."""


def nothing() -> None:
    pass


def run_together(*bodies: Callable[[], Any]) -> list[threading.Thread]:
    """Starts all, and lets none begin before all are there."""
    barrier = threading.Barrier(len(bodies))

    def gated(body: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            barrier.wait()
            body()

        return run

    threads = [threading.Thread(target=gated(body)) for body in bodies]
    for thread in threads:
        thread.start()
    return threads


def run_script(text: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.contract
@pytest.mark.parametrize("way", ["take", "try_take", "batch", "mixed"])
@pytest.mark.usefixtures("short_switches")
def test_every_mail_of_every_producer_is_taken_once_and_in_the_order_of_its_producer(way: str) -> None:
    mailbox, producers, each = TaskMailbox(), 4, 3000
    seen: list[tuple[int, int]] = []

    def produce(producer: int) -> Callable[[], None]:
        def body() -> None:
            for number in range(each):
                mailbox.put(Mail(seen.append, (producer, number)))

        return body

    threads = run_together(*[produce(producer) for producer in range(producers)])
    ways = itertools.cycle(["take", "try_take", "batch"]) if way == "mixed" else itertools.repeat(way)
    while len(seen) < producers * each:
        now = next(ways)
        if now == "batch":
            mailbox.create_batch()
            while mail := mailbox.try_take_from_batch():
                mail.run()
        elif now == "take":
            mail = mailbox.take(timeout=LONG)
            assert mail is not None
            mail.run()
        elif mail := mailbox.try_take():
            mail.run()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [(p, n) for p in range(producers) for n in range(each)]
    for producer in range(producers):
        mine = [number for who, number in seen if who == producer]
        assert mine == sorted(mine)
    assert mailbox.statistics().put == mailbox.statistics().taken == producers * each


@pytest.mark.contract
@pytest.mark.usefixtures("short_switches")
def test_mails_of_one_put_all_stay_adjacent_among_other_producers() -> None:
    mailbox, producers, rounds, size = TaskMailbox(), 4, 300, 7
    seen: list[tuple[int, int, int]] = []

    def produce(producer: int) -> Callable[[], None]:
        def body() -> None:
            for number in range(rounds):
                mailbox.put_all(Mail(seen.append, (producer, number, i)) for i in range(size))

        return body

    threads = run_together(*[produce(producer) for producer in range(producers)])
    while len(seen) < producers * rounds * size:
        mail = mailbox.take(timeout=LONG)
        assert mail is not None
        mail.run()
    for thread in threads:
        thread.join()
    groups = [seen[start : start + size] for start in range(0, len(seen), size)]
    for group in groups:
        assert group == [(*group[0][:2], i) for i in range(size)]


@pytest.mark.contract
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("short_switches")
def test_a_put_races_with_quiesce_to_one_outcome_that_both_sides_know(seed: int) -> None:
    mailbox, producers = TaskMailbox(), 3
    accepted: list[list[int]] = [[] for _ in range(producers)]
    refused = [0] * producers
    ends_after = random.Random(seed).randrange(400)

    def produce(producer: int) -> Callable[[], None]:
        def body() -> None:
            for number in itertools.count():
                mail = Mail(nothing, producer, number)
                try:
                    mailbox.put(mail)
                except MailboxClosedError as error:
                    refused[producer] = number if error.mail is mail else -1
                    return
                accepted[producer].append(number)

        return body

    def end() -> None:
        while mailbox.statistics().put < ends_after:
            pass
        mailbox.quiesce()

    threads = run_together(end, *[produce(producer) for producer in range(producers)])
    got: list[Mail] = []
    while True:
        try:
            mail = mailbox.take(timeout=LONG)
        except MailboxClosedError:
            break
        assert mail is not None
        got.append(mail)
        if len(got) == ends_after // 2:
            got += mailbox.drain()
    for thread in threads:
        thread.join()
    assert not mailbox.has_mail()
    got += mailbox.close()
    for producer in range(producers):
        mine = [mail.args[1] for mail in got if mail.args[0] == producer]
        assert mine == accepted[producer] == list(range(refused[producer]))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("short_switches")
def test_close_returns_exactly_what_was_accepted_and_not_taken(seed: int) -> None:
    mailbox, producers = TaskMailbox(), 3
    accepted = [0] * producers
    taken_first = random.Random(seed).randrange(200)

    def produce(producer: int) -> Callable[[], None]:
        def body() -> None:
            while mailbox.try_put(Mail(nothing, producer, accepted[producer])):
                accepted[producer] += 1

        return body

    threads = run_together(*[produce(producer) for producer in range(producers)])
    got = []
    while len(got) < taken_first:
        got.append(mailbox.take(timeout=LONG))
    left = mailbox.close()
    for thread in threads:
        thread.join()
    assert mailbox.close() == []
    pairs = sorted(mail.args for mail in [*got, *left] if mail is not None)
    assert pairs == [(p, n) for p in range(producers) for n in range(accepted[p])]


@needs_looks
@pytest.mark.contract(convicts=["push_without_wake", "mutex_push_without_wake"])
def test_a_sleeping_take_is_woken_by_the_put_and_not_by_its_own_clock() -> None:
    mailbox, rounds = TaskMailbox(), 20
    taken = threading.Semaphore(0)

    def consume() -> None:
        mailbox.adopt()
        for _ in range(rounds):
            # Off the main thread this is one sleep, so that nothing but the put ends it.
            assert mailbox.take(timeout=LONG) is not None
            taken.release()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        for _ in range(rounds):
            wait_until_asleep(thread)
            before = look(thread)
            mailbox.put(Mail(nothing))
            assert look(thread) != before, "the put has returned and the take still sleeps"
            taken.acquire()
    finally:
        # Wakes a take that the put has not woken.
        mailbox.quiesce()
        thread.join()


@pytest.mark.contract
@pytest.mark.parametrize("seconds", [None, LONG])
def test_a_waiting_take_is_woken_by_quiesce(seconds: float | None) -> None:
    for _ in range(50):
        mailbox = TaskMailbox()
        (thread,) = run_together(mailbox.quiesce)
        with pytest.raises(MailboxClosedError):
            mailbox.take(timeout=seconds)
        thread.join()


def test_a_waiting_take_goes_on_waiting_when_the_mail_is_not_for_it() -> None:
    mailbox = TaskMailbox()
    low, high = Mail(nothing, priority=0), Mail(nothing, priority=5)

    def produce() -> None:
        for _ in range(100):
            mailbox.put(Mail(nothing, priority=1))
        mailbox.put_all([low, high])

    (thread,) = run_together(produce)
    assert mailbox.take(5, timeout=LONG) is high
    thread.join()
    assert len(mailbox) == 101


@pytest.mark.contract
def test_a_take_of_no_mail_lasts_as_long_as_its_timeout() -> None:
    mailbox = TaskMailbox()
    for seconds in (0.02, 0.12):
        begin = time.monotonic()
        assert mailbox.take(timeout=seconds) is None
        assert time.monotonic() - begin >= seconds * 0.99


def test_a_waiting_take_lets_other_threads_run() -> None:
    # With the GIL held, the other thread could not put what ends the wait.
    mailbox = TaskMailbox()
    steps: list[int] = []

    def work() -> None:
        steps.extend(range(1000))
        mailbox.put(Mail(nothing))

    (thread,) = run_together(work)
    assert mailbox.take(timeout=LONG) is not None
    thread.join()
    assert len(steps) == 1000


# A signal to the process, sent when the main thread is inside the function that waits.
SIGNAL_WHILE_WAITING = """
import os, signal, sys, threading
from pillarbox.kernel import Mail, TaskMailbox
mailbox = TaskMailbox()
main = threading.get_ident()
def wait_here():
    return mailbox.take()
def send(number):
    while sys._current_frames()[main].f_code is not wait_here.__code__:
        pass
    os.kill(os.getpid(), number)
def signalled(number):
    threading.Thread(target=send, args=(number,)).start()
    return wait_here()
"""


@pytest.mark.contract
def test_ctrl_c_ends_a_waiting_take_and_loses_no_mail() -> None:
    script = """
try:
    signalled(signal.SIGINT)
except KeyboardInterrupt:
    kept = Mail(print)
    mailbox.put(kept)
    assert mailbox.take(timeout=0) is kept
    print('interrupted')
"""
    done = run_script(SIGNAL_WHILE_WAITING + script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_signal_handler_runs_while_a_take_waits_and_the_wait_goes_on() -> None:
    script = """
signal.signal(signal.SIGUSR1, lambda *_: mailbox.put(Mail(print, 'from the handler')))
signalled(signal.SIGUSR1).run()
"""
    done = run_script(SIGNAL_WHILE_WAITING + script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "from the handler\n", "")


@pytest.mark.contract
def test_the_interpreter_ends_while_a_daemon_thread_waits() -> None:
    script = """
import threading
from pillarbox.kernel import Handover, TaskMailbox
begun = threading.Semaphore(0)
def wait_for_mail():
    mailbox = TaskMailbox()
    begun.release()
    mailbox.take()
def wait_for_item():
    begun.release()
    Handover(1).take()
for target in (wait_for_mail, wait_for_item):
    threading.Thread(target=target, daemon=True).start()
    begun.acquire()
print('over')
"""
    done = run_script(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


# ---- waits of threads that get no signals


def voluntary_switches() -> int:
    """The number of times that the calling thread has given up the processor to wait."""
    status = Path("/proc/thread-self/status").read_text()
    return int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)$", status, re.MULTILINE)[0])


def full() -> Handover:
    handover = Handover(1)
    handover.put("an item")
    return handover


WAITS: dict[str, Callable[[float], object]] = {
    "take of a mailbox": lambda seconds: TaskMailbox().take(timeout=seconds),
    "take of a hand-over": lambda seconds: Handover(1).take(seconds),
    "put of a hand-over": lambda seconds: full().put("another one", timeout=seconds),
}
SLICES = 6


@pytest.mark.contract
@pytest.mark.skipif(not Path("/proc/thread-self/status").exists(), reason="no counts of switches here")
@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_of_another_than_the_main_thread_is_one_sleep(wait: str) -> None:
    counts: list[int] = []

    def waits() -> None:
        before = voluntary_switches()
        assert not WAITS[wait](SLICES * 0.05)
        counts.append(voluntary_switches() - before)

    thread = threading.Thread(target=waits)
    thread.start()
    thread.join()
    # Each slice of 50 ms would be one; the others are for the interpreter's lock.
    assert counts[0] < SLICES
