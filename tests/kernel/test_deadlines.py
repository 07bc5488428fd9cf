"""Deadlines: what comes out, when and in which order; the clock; references; memory after a burst."""

import gc
import math
import random
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pillarbox.kernel import Deadlines, WrongThreadError
from tests.search import examples


class Clock:
    """A clock that is set by the test."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Tracked:
    """Calls a function when it goes."""

    def __init__(self, at_end: Callable[[], Any] = int) -> None:
        self.at_end = at_end

    def __del__(self) -> None:
        self.at_end()


@pytest.fixture
def clock() -> Clock:
    return Clock()


# ---- against a model


LENGTHS = st.one_of(st.sampled_from([0.0, 1.0, 1, 5.0]), st.floats(0.0, 10.0), st.integers(0, 10))


class AgainstModel(RuleBasedStateMachine):
    """A dict of timers, sorted whenever the order matters."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.deadlines = Deadlines(self.clock)
        self.now = -math.inf
        self.armed: dict[int, tuple[float, int]] = {}
        self.handles: list[int] = []

    def in_order(self) -> list[int]:
        return sorted(self.armed, key=lambda handle: self.armed[handle])

    def read_clock(self) -> float:
        self.now = max(self.now, self.clock.now)
        return self.now

    def take(self, handles: list[int]) -> list[int]:
        return [self.armed.pop(handle)[1] for handle in handles]

    @rule(lengths=st.lists(LENGTHS, min_size=1, max_size=5))
    def arm(self, lengths: list[float]) -> None:
        for length in lengths:
            number = len(self.handles)
            handle = self.deadlines.arm(length, number)
            assert handle not in self.handles
            self.handles.append(handle)
            self.armed[handle] = (self.read_clock() + length, number)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.handles:
            handle = data.draw(st.sampled_from(self.handles))
            assert self.deadlines.cancel(handle) == (self.armed.pop(handle, None) is not None)

    @rule(handle=st.integers())
    def cancel_some_number(self, handle: int) -> None:
        assert self.deadlines.cancel(handle) == (self.armed.pop(handle, None) is not None)

    @rule(limit=st.none() | st.integers(0, 3))
    def expire(self, limit: int | None) -> None:
        now = self.read_clock()
        due = [handle for handle in self.in_order() if self.armed[handle][0] <= now]
        assert self.deadlines.expire(limit) == self.take(due[:limit])

    @rule(seconds=st.one_of(st.floats(-3.0, 6.0), st.sampled_from([0.0, 1.0, 5.0])))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def clear(self) -> None:
        assert self.deadlines.clear() == self.take(self.in_order())

    @invariant()
    def agrees(self) -> None:
        assert len(self.deadlines) == len(self.armed)
        first = min((due for due, _ in self.armed.values()), default=None)
        assert self.deadlines.next_deadline() == first
        order = self.in_order()
        assert self.deadlines.peek() == ((self.armed[order[0]][1], first) if order else None)


@pytest.mark.contract(
    "What deadlines do is what a sorted table does.",
    convicts=["idle_lane_kept_in_mind"],
)
def test_what_they_do_is_what_a_sorted_table_does() -> None:
    machine = AgainstModel.TestCase
    machine.settings = settings(
        derandomize=True, deadline=None, max_examples=examples(150), stateful_step_count=40
    )
    machine().runTest()


@pytest.mark.contract(convicts=["heap_only_sinks"])
def test_timers_of_many_lengths_come_out_in_order_whatever_is_cancelled(clock: Clock) -> None:
    rng = random.Random(7)
    for _ in range(300):
        deadlines, lengths = Deadlines(clock), rng.sample(range(1000), 12)
        handles = {deadlines.arm(float(length), length): length for length in lengths}
        for handle in rng.sample(sorted(handles), rng.randrange(6)):
            assert deadlines.cancel(handle)
            del handles[handle]
        assert deadlines.clear() == sorted(handles.values())


@pytest.mark.contract(convicts=["full_page_forgotten", "page_with_room_linked_back"])
def test_the_room_that_cancelled_timers_leave_is_used_again(clock: Clock) -> None:
    rng, timers = random.Random(5), 2_048
    deadlines = Deadlines(clock)
    handles = [deadlines.arm(1.0, number) for number in range(timers)]
    full = sys.getsizeof(deadlines)
    for _ in range(4):
        some = rng.sample(range(timers), timers // 2)
        assert all(deadlines.cancel(handles[number]) for number in some)
        for number in some:
            handles[number] = deadlines.arm(1.0, number)
        # The lower bits of a handle name the slot: no two timers have the same.
        assert len({handle & (2**28 - 1) for handle in handles}) == timers
        assert sys.getsizeof(deadlines) == full
    clock.now += 1.0
    assert sorted(deadlines.expire()) == list(range(timers))


@pytest.mark.parametrize("lengths", [1, 3, 1000, 100_000])
def test_a_hundred_thousand_timers_come_out_sorted(clock: Clock, lengths: int) -> None:
    rng = random.Random(lengths)
    deadlines = Deadlines(clock)
    expected: dict[int, tuple[float, int]] = {}
    for number in range(100_000):
        clock.now += rng.random() / 1000
        length = 100.0 + rng.randrange(lengths) / 7
        expected[deadlines.arm(length, number)] = (clock.now + length, number)
    for handle in rng.sample(sorted(expected), 50_000):
        assert deadlines.cancel(handle)
        del expected[handle]
    clock.now += 1e6
    assert deadlines.expire() == [number for _, number in sorted(expected.values())]


# ---- each method


@pytest.mark.contract
def test_a_timer_is_due_when_its_seconds_have_passed_and_not_before(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    deadlines.arm(10, "a")
    assert deadlines.next_deadline() == 110.0
    clock.now = 109.9
    assert deadlines.expire() == []
    clock.now = 110.0
    assert deadlines.expire() == ["a"]
    assert deadlines.expire() == []
    assert deadlines.next_deadline() is None


@pytest.mark.contract(convicts=["next_deadline_stale"])
@pytest.mark.parametrize("way", ["cancel", "expire"])
def test_the_next_deadline_is_that_of_the_next_timer_of_the_same_length(clock: Clock, way: str) -> None:
    deadlines = Deadlines(clock)
    first = deadlines.arm(1.0, "first")
    clock.now += 0.5
    deadlines.arm(1.0, "second")
    assert deadlines.next_deadline() == 101.0
    if way == "cancel":
        deadlines.cancel(first)
    else:
        clock.now += 0.5
        assert deadlines.expire() == ["first"]
    assert deadlines.next_deadline() == 101.5


@pytest.mark.contract
def test_timers_due_at_once_come_in_the_order_of_arming(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    deadlines.arm(10.0, "long")
    clock.now = 105.0
    deadlines.arm(5.0, "short")
    deadlines.arm(0.0, "now")
    clock.now = 110.0
    deadlines.arm(0.0, "last")
    assert deadlines.expire() == ["now", "long", "short", "last"]


def test_a_limit_leaves_the_rest_for_the_next_call(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    for number in range(5):
        deadlines.arm(number, number)
    clock.now += 10.0
    assert deadlines.expire(0) == []
    assert deadlines.expire(2) == [0, 1]
    assert deadlines.expire(10**30) == [2, 3, 4]
    with pytest.raises(ValueError, match="limit must be None or at least 0 timers, not -1"):
        deadlines.expire(-1)


@pytest.mark.contract("A handle of a deadline cancels once, and never another timer.")
def test_a_handle_cancels_once_and_never_another_timer(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    first = deadlines.arm(1.0, "first")
    assert deadlines.cancel(first)
    assert not deadlines.cancel(first)
    second = deadlines.arm(1.0, "second")
    assert not deadlines.cancel(first)
    clock.now += 1.0
    assert deadlines.expire() == ["second"]
    assert not deadlines.cancel(second)


@pytest.mark.parametrize("number", [0, -1, -2, 1, 2**28 - 1, 2**62, 2**63, 2**200, -(2**200), True])
def test_a_number_that_is_no_handle_cancels_nothing(clock: Clock, number: int) -> None:
    deadlines = Deadlines(clock)
    assert not deadlines.cancel(number)
    handle = deadlines.arm(1.0, "kept")
    assert not deadlines.cancel(number)
    assert not deadlines.cancel(handle + number if number else ~handle)
    assert len(deadlines) == 1


@pytest.mark.contract(convicts=["freed_page_looked_into"])
def test_a_handle_of_a_burst_that_is_over_names_no_timer(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    handles = [deadlines.arm(1.0, number) for number in range(2_000)]
    assert len(deadlines.clear()) == 2_000
    assert not any(map(deadlines.cancel, handles))
    again = deadlines.arm(1.0, "again")
    assert not any(map(deadlines.cancel, handles))
    assert deadlines.cancel(again)


def test_clear_takes_everything_out_in_the_order_of_deadlines(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    handles = [deadlines.arm(seconds, seconds) for seconds in (3.0, 1.0, 2.0, 1.0)]
    assert deadlines.clear() == [1.0, 1.0, 2.0, 3.0]
    assert (len(deadlines), deadlines.next_deadline()) == (0, None)
    assert not any(map(deadlines.cancel, handles))
    clock.now += 10.0
    assert deadlines.expire() == []


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (-0.001, ValueError),
        (10**400, ValueError),
        ("1", TypeError),
        (None, TypeError),
    ],
)
def test_seconds_are_a_finite_number_of_at_least_none(
    clock: Clock, seconds: Any, error: type[Exception]
) -> None:
    deadlines = Deadlines(clock)
    with pytest.raises(error, match="seconds must be a"):
        deadlines.arm(seconds, "x")
    assert len(deadlines) == 0


@pytest.mark.contract(convicts=["deadline_overflows"])
def test_a_deadline_fits_a_float(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    clock.now = sys.float_info.max
    with pytest.raises(ValueError, match="seconds must give a deadline that fits a float"):
        deadlines.arm(sys.float_info.max, "x")
    assert deadlines.next_deadline() is None


def test_a_handle_is_an_int() -> None:
    with pytest.raises(TypeError):
        Deadlines().cancel("1")  # type: ignore[arg-type]


# ---- the clock


def test_without_a_clock_of_their_own_they_use_one_that_does_not_step() -> None:
    deadlines = Deadlines()
    deadlines.arm(0.0, "now")
    deadlines.arm(3600.0, "in an hour")
    assert deadlines.expire() == ["now"]
    due = deadlines.next_deadline()
    deadlines.arm(3600.0, "later")
    assert deadlines.next_deadline() == due


@pytest.mark.contract
def test_a_clock_that_steps_back_changes_no_order_and_delays_nothing_twice(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    deadlines.arm(10.0, "a")
    clock.now = 50.0
    deadlines.arm(10.0, "b")
    deadlines.arm(0.0, "c")
    assert deadlines.expire() == ["c"]
    assert deadlines.next_deadline() == 110.0
    clock.now = 110.0
    assert deadlines.expire() == ["a", "b"]


@pytest.mark.parametrize(
    ("reading", "error"),
    [
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (-float("inf"), ValueError),
        (10**400, ValueError),
        ("1", TypeError),
    ],
)
def test_a_clock_gives_a_finite_number_of_seconds(reading: Any, error: type[Exception]) -> None:
    deadlines = Deadlines(lambda: reading)
    for call in (lambda: deadlines.arm(1.0, "x"), deadlines.expire):
        with pytest.raises(error, match="clock must return a"):
            call()
    assert len(deadlines) == 0


def test_what_the_clock_raises_comes_out_and_changes_nothing(clock: Clock) -> None:
    def broken() -> float:
        return clock.now / working

    working = 1
    deadlines = Deadlines(broken)
    deadlines.arm(1.0, "x")
    working = 0
    with pytest.raises(ZeroDivisionError):
        deadlines.arm(1.0, "y")
    with pytest.raises(ZeroDivisionError):
        deadlines.expire()
    assert deadlines.clear() == ["x"]


def test_a_clock_may_use_the_deadlines_that_ask_it() -> None:
    left = 3

    def clock() -> float:
        nonlocal left
        if left:
            left -= 1
            deadlines.arm(0.0, left)
        return 1.0

    deadlines = Deadlines(clock)
    deadlines.arm(0.0, "last")
    assert deadlines.expire() == [0, 1, 2, "last"]


def test_a_clock_must_be_callable() -> None:
    with pytest.raises(TypeError, match=r"clock must be None or callable, not 1\.5"):
        Deadlines(1.5)  # type: ignore[arg-type]


# ---- threads


@pytest.mark.contract("Deadlines refuse another thread.")
@pytest.mark.parametrize("operation", ["arm", "cancel", "expire", "clear"])
def test_another_thread_is_refused(elsewhere: Callable[[Callable[[], Any]], Any], operation: str) -> None:
    deadlines = Deadlines()
    handle = deadlines.arm(0.0, "x")
    arguments = {"arm": (1.0, "y"), "cancel": (handle,)}.get(operation, ())
    with pytest.raises(WrongThreadError, match=r"'MainThread'.*'elsewhere'"):
        elsewhere(lambda: getattr(deadlines, operation)(*arguments))
    assert deadlines.clear() == ["x"]


def test_another_thread_may_look(elsewhere: Callable[[Callable[[], Any]], Any], clock: Clock) -> None:
    deadlines = Deadlines(clock)
    deadlines.arm(1.0, "x")
    seen = elsewhere(lambda: (len(deadlines), deadlines.next_deadline(), deadlines.peek()))
    assert seen == (1, 101.0, ("x", 101.0))


def test_another_thread_may_look_at_any_moment() -> None:
    deadlines, over = Deadlines(), threading.Event()
    wrong: list[object] = []

    def look() -> None:
        while not over.is_set():
            seen = deadlines.peek()
            if seen is not None and seen[0].name != "payload":
                wrong.append(seen)

    class Payload:
        name = "payload"

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(20_000):
            handle = deadlines.arm(number % 5 * 1e-6, Payload())
            if number % 3:
                deadlines.cancel(handle)
            elif number % 8 == 0:
                deadlines.expire()
    finally:
        over.set()
        thread.join()
    assert wrong == []


def test_a_look_keeps_what_it_has_seen(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    deadlines.arm(1.0, "first")
    deadlines.arm(2.0, None)
    for _ in range(2):
        assert deadlines.peek() == ("first", 101.0)
    clock.now += 1.0
    assert deadlines.expire() == ["first"]
    assert deadlines.peek() == (None, 102.0)
    deadlines.clear()
    assert deadlines.peek() is None


def test_another_thread_may_adopt_them_while_nothing_is_armed(
    elsewhere: Callable[[Callable[[], Any]], Any],
) -> None:
    deadlines = Deadlines()
    deadlines.arm(0.0, "x")
    with pytest.raises(WrongThreadError):
        elsewhere(deadlines.adopt)
    deadlines.clear()
    elsewhere(deadlines.adopt)
    with pytest.raises(WrongThreadError):
        deadlines.arm(0.0, "x")


# ---- references


def test_a_hundred_thousand_timers_leave_no_reference_behind() -> None:
    deadlines, payload = Deadlines(), object()
    before = sys.getrefcount(payload)
    for number in range(100_000):
        handle = deadlines.arm(number % 7 * 1e-7, payload)
        if number % 3 == 0:
            deadlines.cancel(handle)
            deadlines.cancel(handle)
        elif number % 100 == 1:
            deadlines.peek()
            deadlines.expire(number % 9)
        elif number % 1000 == 2:
            deadlines.clear()
    with pytest.raises(ValueError, match="seconds"):
        deadlines.arm(-1.0, payload)
    deadlines.clear()
    assert sys.getrefcount(payload) == before


def test_payloads_are_held_and_go_with_the_deadlines() -> None:
    deadlines, payload = Deadlines(), Tracked()
    gone = weakref.ref(payload)
    deadlines.arm(0.0, payload)
    deadlines.arm(1.0, payload)
    del payload
    gc.collect()
    assert gone() is not None
    del deadlines
    assert gone() is None


def test_releasing_a_payload_may_use_the_same_deadlines(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    seen: list[Any] = []

    def use() -> None:
        handle = deadlines.arm(0.0, "from the end of another")
        deadlines.arm(0.0, "kept")
        seen.append((deadlines.cancel(handle), deadlines.expire(), len(deadlines)))

    deadlines.cancel(deadlines.arm(5.0, Tracked(use)))
    deadlines.arm(5.0, Tracked(use))
    deadlines.clear()
    deadlines.arm(5.0, Tracked(use))
    clock.now += 5.0
    deadlines.expire()
    assert seen == [(True, ["kept"], 0)] * 3


def test_garbage_that_is_collected_while_they_expire_may_use_them(clock: Clock) -> None:
    deadlines = Deadlines(clock)
    cleared: list[Any] = []
    for number in range(20):
        deadlines.arm(0.0, number)

    def leave_garbage() -> None:
        thing = Tracked(lambda: cleared.extend(deadlines.expire(5)))
        thing.myself = thing  # type: ignore[attr-defined]

    thresholds = gc.get_threshold()
    gc.disable()
    leave_garbage()
    # So many that the interpreter has no list left in store: the next one may collect.
    lists: list[Any] = [[] for _ in range(500)]
    gc.set_threshold(1)
    gc.enable()
    try:
        expired = deadlines.expire()
    finally:
        gc.set_threshold(*thresholds)
    del lists
    gc.collect()
    cleared += deadlines.expire()
    assert sorted(cleared + expired) == list(range(20))
    assert len(deadlines) == 0


# ---- memory


def test_a_burst_gives_its_memory_back() -> None:
    deadlines = Deadlines()
    small = sys.getsizeof(deadlines)
    for number in range(100_000):
        deadlines.arm(3600.0 + number, None)
        deadlines.arm(3600.0, None)
    large = sys.getsizeof(deadlines)
    assert large > 200_000 * 40
    deadlines.clear()
    assert sys.getsizeof(deadlines) < small + large / 100


def test_cancelled_timers_take_no_room() -> None:
    deadlines = Deadlines()
    deadlines.arm(3600.0, None)
    for number in range(100):
        deadlines.cancel(deadlines.arm(number, None))
    before = sys.getsizeof(deadlines)
    for number in range(100_000):
        deadlines.cancel(deadlines.arm(number / 7, None))
        deadlines.cancel(deadlines.arm(10.0, None))
    assert sys.getsizeof(deadlines) <= before
