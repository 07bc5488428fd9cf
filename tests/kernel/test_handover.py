"""The contract of the hand-over: bounds, order, end, failure, close, wake-ups, Ctrl-C."""

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.kernel import Handover, HandoverClosedError
from tests.kernel.asleep import stuck
from tests.waiting import wait_until


def nothing() -> None:
    pass


def in_thread(body: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=body)
    thread.start()
    return thread


# ---- order and bounds


@pytest.mark.contract("Items of a hand-over come out in the order in which they went in.")
def test_items_come_out_in_the_order_in_which_they_went_in() -> None:
    handover = Handover(10)
    for item in "abc":
        assert handover.put(item) is True
    assert (handover.take(), handover.try_take(), handover.take(timeout=0)) == ("a", "b", "c")
    assert handover.try_take() is None
    assert handover.take(timeout=0.01) is None


def test_take_all_gives_the_whole_content_in_one_step() -> None:
    handover = Handover(10, max_bytes=100)
    for item in "abc":
        handover.put(item, nbytes=30)
    assert handover.take_all() == ["a", "b", "c"]
    assert handover.take_all() == []
    assert len(handover) == 0
    assert handover.statistics().nbytes == 0


@pytest.mark.contract("The number of items in a hand-over is bounded.", convicts=["one_item_too_many"])
def test_the_number_of_items_is_bounded() -> None:
    handover = Handover(2)
    assert handover.try_put("a") and handover.try_put("b")
    assert handover.try_put("c") is False
    assert handover.put("c", timeout=0) is False
    assert handover.put("c", timeout=0.01) is False
    assert len(handover) == 2
    handover.take()
    assert handover.try_put("c") is True


@pytest.mark.contract(
    "The bytes in a hand-over are bounded.", convicts=["bytes_not_counted", "bytes_stay_counted"]
)
def test_the_bytes_are_bounded() -> None:
    handover = Handover(100, max_bytes=10)
    assert handover.try_put("a", 6)
    assert handover.try_put("b", 5) is False
    assert handover.try_put("b", 4) is True
    assert handover.try_put("c", 1) is False
    assert handover.try_put("c", 0) is True
    assert handover.take() == "a"
    assert handover.try_put("d", 6) is True
    assert handover.statistics().nbytes == 10


@pytest.mark.contract
def test_an_item_is_always_accepted_when_nothing_waits_however_large() -> None:
    handover = Handover(5, max_bytes=10)
    assert handover.try_put("large", 10**12) is True
    assert handover.try_put("small", 0) is False
    assert handover.take() == "large"
    assert handover.try_put("small", 1) is True
    assert handover.try_put("large", 10) is False


def test_arguments_out_of_range_are_refused_by_name() -> None:
    for call, name in [
        (lambda: Handover(0), "max_items .*0"),
        (lambda: Handover(1, 0), "max_bytes .*0"),
        (lambda: Handover(1).put("a", -1), "nbytes .*-1"),
        (lambda: Handover(1).put("a", 2**80), "nbytes"),
        (lambda: Handover(1).put("a", timeout=-1), "timeout .*-1"),
        (lambda: Handover(1).take(float("nan")), "timeout .*nan"),
    ]:
        with pytest.raises(ValueError, match=name):
            call()
    for call, name in [
        (lambda: Handover("1"), "max_items"),  # type: ignore[arg-type]
        (lambda: Handover(1, 1.5), "max_bytes"),  # type: ignore[arg-type]
        (lambda: Handover(1).put(None), "item"),
        (lambda: Handover(1).put("a", 1.5), "nbytes"),  # type: ignore[arg-type]
        (lambda: Handover(1).take("soon"), "timeout"),  # type: ignore[arg-type]
        (lambda: Handover(1).fail("no exception"), "exception"),  # type: ignore[arg-type]
        (lambda: Handover(1).arm_wakeup_consumer(1), "callback"),  # type: ignore[arg-type]
        (lambda: Handover(1).arm_wakeup_producer(1), "callback"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(TypeError, match=name):
            call()


# ---- the producer's end


@pytest.mark.contract("After finish, what waits is handed out, and then every take raises.")
def test_after_finish_what_waits_is_handed_out_and_then_every_take_raises() -> None:
    handover = Handover(5)
    handover.put("a")
    handover.put("b")
    assert handover.finish() is True
    assert handover.ended is False
    assert handover.take() == "a"
    assert handover.take_all() == ["b"]
    assert handover.ended is True
    for take in (handover.take, handover.try_take, handover.take_all):
        with pytest.raises(HandoverClosedError, match="finished"):
            take()


@pytest.mark.contract(convicts=["failure_overtakes"])
def test_a_failure_reaches_the_consumer_after_the_items_before_it() -> None:
    handover, failure = Handover(5), KeyError("lost")
    handover.put("a")
    assert handover.fail(failure) is True
    assert handover.take() == "a"
    for take in (handover.take, handover.try_take, handover.take_all):
        with pytest.raises(KeyError) as raised:
            take()
        assert raised.value is failure
    assert handover.ended is True


@pytest.mark.contract(
    "The first end of a hand-over decides, and nothing goes in after it.", convicts=["put_after_finish"]
)
@pytest.mark.parametrize("first", ["finish", "fail"])
def test_the_first_end_decides_and_nothing_goes_in_after_it(first: str) -> None:
    handover = Handover(5)
    assert handover.finish() if first == "finish" else handover.fail(KeyError())
    assert handover.finish() is False
    assert handover.fail(ValueError()) is False
    for put in (handover.put, handover.try_put):
        with pytest.raises(HandoverClosedError):
            put("late")
    with pytest.raises(HandoverClosedError if first == "finish" else KeyError):
        handover.take()


@pytest.mark.contract
@pytest.mark.parametrize("end", ["finish", "fail"])
def test_the_end_of_the_input_wakes_a_waiting_take(end: str) -> None:
    handover = Handover(5)

    def finish_when_it_waits() -> None:
        wait_until(lambda: handover.statistics().consumer_waits == 1)
        handover.finish() if end == "finish" else handover.fail(KeyError("lost"))

    thread = in_thread(finish_when_it_waits)
    with pytest.raises(HandoverClosedError if end == "finish" else KeyError):
        handover.take(timeout=30)
    thread.join()


# ---- the consumer's end


@pytest.mark.contract("Close of a hand-over returns what waits, and refuses everything from then on.")
def test_close_returns_what_waits_and_refuses_everything_from_then_on() -> None:
    handover = Handover(5)
    handover.put("a", 3)
    handover.put("b", 3)
    assert handover.close() == ["a", "b"]
    assert handover.close() == []
    assert handover.put("c") is False and handover.try_put("c") is False
    assert handover.finish() is False and handover.fail(KeyError()) is False
    assert handover.ended is True
    for take in (handover.take, handover.try_take, handover.take_all):
        with pytest.raises(HandoverClosedError, match="closed"):
            take()
    statistics = handover.statistics()
    assert (statistics.put, statistics.taken, statistics.refused, statistics.nbytes) == (2, 0, 2, 0)


@pytest.mark.contract
def test_close_lets_a_waiting_put_return_false_at_once() -> None:
    handover = Handover(1)
    handover.put("a")
    answers: list[bool] = []
    thread = in_thread(lambda: answers.append(handover.put("b")))
    wait_until(lambda: handover.statistics().producer_waits == 1)
    assert handover.close() == ["a"]
    thread.join()
    assert answers == [False]


def test_a_put_that_waits_while_another_thread_ends_the_input_raises() -> None:
    handover = Handover(1)
    handover.put("a")
    errors: list[BaseException] = []

    def put() -> None:
        try:
            handover.put("b")
        except HandoverClosedError as error:
            errors.append(error)

    thread = in_thread(put)
    wait_until(lambda: handover.statistics().producer_waits == 1)
    handover.finish()
    thread.join()
    assert len(errors) == 1
    assert handover.take_all() == ["a"]


# ---- wake-ups


def test_wake_up_makes_a_waiting_take_return_none() -> None:
    handover = Handover(1)

    def wake_when_it_waits() -> None:
        wait_until(lambda: handover.statistics().consumer_waits == 1)
        handover.wake_up()

    thread = in_thread(wake_when_it_waits)
    assert handover.take(timeout=30) is None
    thread.join()
    assert handover.put("a") and handover.take() == "a"


@pytest.mark.contract(convicts=["wake_up_forgotten"])
def test_a_wake_up_without_a_waiting_consumer_is_kept_for_one_wait() -> None:
    handover = Handover(2)
    handover.wake_up()
    handover.wake_up()
    handover.put("a")
    assert handover.take() == "a"
    assert handover.take() is None
    assert handover.take(timeout=0.01) is None
    handover.wake_up()
    assert handover.arm_wakeup_consumer(nothing) is False
    assert handover.arm_wakeup_consumer(nothing) is True


def test_a_wake_up_is_for_a_take_that_would_wait_and_not_for_one_that_ends() -> None:
    handover = Handover(2)
    handover.wake_up()
    handover.finish()
    with pytest.raises(HandoverClosedError, match="finished"):
        handover.take()


EVENTS: dict[str, Callable[[Handover], Any]] = {
    "put": lambda handover: handover.put("a"),
    "try_put": lambda handover: handover.try_put("a"),
    "finish": lambda handover: handover.finish(),
    "fail": lambda handover: handover.fail(KeyError()),
    "wake_up": lambda handover: handover.wake_up(),
}


@pytest.mark.contract(convicts=["put_forgets_armed"])
@pytest.mark.parametrize("event", EVENTS)
def test_an_armed_consumer_is_called_once(event: str, elsewhere: Callable[..., Any]) -> None:
    handover, calls = Handover(5), list[str]()
    assert handover.arm_wakeup_consumer(lambda: calls.append("replaced")) is True
    assert handover.arm_wakeup_consumer(lambda: calls.append(threading.current_thread().name)) is True
    elsewhere(lambda: EVENTS[event](handover))
    assert calls == ["elsewhere"]
    handover.wake_up()
    assert calls == ["elsewhere"]


def test_an_armed_consumer_finds_the_item_when_it_is_called() -> None:
    handover, got = Handover(5), list[object]()
    handover.arm_wakeup_consumer(lambda: got.append(handover.try_take()))
    handover.put("a")
    assert got == ["a"]


def test_a_consumer_is_not_armed_when_there_is_something_to_do() -> None:
    handover = Handover(5)
    handover.put("a")
    assert handover.arm_wakeup_consumer(nothing) is False
    handover.take()
    handover.finish()
    assert handover.arm_wakeup_consumer(nothing) is False


@pytest.mark.contract
@pytest.mark.parametrize("event", ["take", "try_take", "take_all", "close"])
def test_an_armed_producer_is_called_once_when_there_is_room(event: str) -> None:
    handover, calls = Handover(1), list[int]()
    assert handover.arm_wakeup_producer(nothing) is False
    handover.put("a")
    assert handover.arm_wakeup_producer(lambda: calls.append(1)) is True
    assert handover.try_put("b") is False
    assert calls == []
    getattr(handover, event)()
    assert calls == [1]
    handover.close()
    assert calls == [1]
    assert handover.arm_wakeup_producer(nothing) is False


def test_an_armed_producer_is_called_when_the_bytes_that_it_needs_are_free() -> None:
    handover, calls = Handover(10, max_bytes=10), list[int]()
    handover.put("a", 5)
    handover.put("b", 5)
    assert handover.arm_wakeup_producer(lambda: calls.append(1), nbytes=8) is True
    assert handover.take() == "a"
    assert calls == []
    assert handover.arm_wakeup_producer(nothing, nbytes=5) is False
    assert handover.take() == "b"
    assert calls == [1]


def test_a_wakeup_that_raises_leaves_the_call_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    handover, seen = Handover(1), list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", lambda info: seen.append(info.exc_type))

    def fail() -> None:
        raise ZeroDivisionError

    handover.arm_wakeup_consumer(fail)
    assert handover.put("a") is True
    handover.arm_wakeup_producer(fail)
    assert handover.take() == "a"
    assert seen == [ZeroDivisionError, ZeroDivisionError]


# ---- threads


@pytest.mark.contract(
    "Everything that goes into a hand-over arrives once and in order, with either side waiting."
)
@pytest.mark.parametrize("max_items", [1, 3])
def test_everything_arrives_once_and_in_order_with_either_side_waiting(max_items: int) -> None:
    handover, total = Handover(max_items, max_bytes=1000), 3000

    def produce() -> None:
        for number in range(total):
            if not handover.put(number, nbytes=number % 700):
                return
        handover.finish()

    got: list[int | None] = []

    def consume() -> None:
        try:
            while True:
                got.append(handover.take())
                got.extend(handover.take_all())
        except HandoverClosedError:
            pass

    # Off the main thread a wait is one sleep, so a lost wake-up leaves both sides asleep.
    threads = [in_thread(produce), in_thread(consume)]
    try:
        wait_until(lambda: not any(thread.is_alive() for thread in threads) or stuck(*threads))
        assert not any(thread.is_alive() for thread in threads), "both sides sleep"
    finally:
        handover.close()
        for thread in threads:
            thread.join()
    assert got == list(range(total))


@pytest.mark.contract
def test_ctrl_c_ends_a_waiting_put_and_a_waiting_take() -> None:
    script = """
import os, signal, sys, threading
from pillarbox.kernel import Handover
handover = Handover(1)
main = threading.get_ident()
def wait_in_put():
    handover.put('refused')
def wait_in_take():
    handover.take()
def interrupt(where):
    while sys._current_frames()[main].f_code is not where.__code__:
        pass
    os.kill(os.getpid(), signal.SIGINT)
handover.put('kept')
for where, then in ((wait_in_put, handover.take_all), (wait_in_take, handover.take_all)):
    thread = threading.Thread(target=interrupt, args=(where,))
    try:
        thread.start()
        where()
    except KeyboardInterrupt:
        print('interrupted', then())
    thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    expected = "interrupted ['kept']\ninterrupted []\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_items_failures_and_wakeups_are_released() -> None:
    class Tracked(Exception):
        def __call__(self) -> None:
            pass

    def forget(handover: Handover, tracked: Any) -> None:
        handover.put(tracked)

    def take(handover: Handover, tracked: Any) -> None:
        handover.put(tracked)
        assert handover.take() is tracked

    def refuse(handover: Handover, tracked: Any) -> None:
        handover.close()
        assert handover.put(tracked) is False

    def fail(handover: Handover, tracked: Any) -> None:
        handover.fail(tracked)
        with pytest.raises(Tracked):
            handover.take()
        tracked.__traceback__ = None

    def arm(handover: Handover, tracked: Any) -> None:
        assert handover.arm_wakeup_consumer(tracked)
        assert handover.put("a")
        assert handover.arm_wakeup_producer(tracked)

    for way in (forget, take, refuse, fail, arm):
        handover, tracked = Handover(1), Tracked()
        gone = weakref.ref(tracked)
        way(handover, tracked)
        del tracked, handover
        gc.collect()
        assert gone() is None, way.__name__


@pytest.mark.contract(convicts=["traceback_grows"])
def test_a_failure_does_not_grow_with_every_take_that_raises_it() -> None:
    handover = Handover(1)
    try:
        raise OSError("the input has failed")
    except OSError as error:
        handover.fail(error)
    lengths = set()
    for _ in range(3):
        with pytest.raises(OSError, match="has failed") as raised:
            handover.take()
        lengths.add(len(raised.traceback))
    assert len(lengths) == 1
