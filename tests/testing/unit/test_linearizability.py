"""The search for linearizations: histories of real threads, corrupted ones, and a search by brute force."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.workload import BURST
from pillarbox.kernel import (
    BACKENDS,
    CapacityError,
    Handover,
    HandoverClosedError,
    Mail,
    OrderedQueue,
    UnorderedQueue,
)
from pillarbox.testing.linearizability import (
    Event,
    MailboxHints,
    Recorder,
    Verdict,
    follows,
    linearize,
    mailbox_hints,
    numbered_handles,
)
from pillarbox.testing.models import HandoverModel, MailboxModel, Model, OrderedModel, Raised, UnorderedModel
from tests.search import examples
from tests.testing.conftest import Record

MAX_STATES_AN_EVENT = 20
"""Bound of a search: that for a history of real threads visits about one state for each of its events."""
PUTS_OF_A_CORRUPTED_ONE = 60
"""Puts of each producer. To refuse a history is to try all its orders, which are few if it is short."""


def search(events: list[Event]) -> Verdict:
    limit = MAX_STATES_AN_EVENT * len(events)
    return linearize(events, MailboxModel(BURST), hints=mailbox_hints(events), limit=limit)


def takes(events: list[Event]) -> list[int]:
    """The events that took an ordinary mail which every take accepts."""
    return [
        index
        for index, event in enumerate(events)
        if event.operation in ("take", "try_take", "try_take_from_batch")
        and isinstance(event.result, Mail)
        and not event.result.urgent
    ]


@pytest.mark.contract
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_real_threads_did_at_a_mailbox_is_linearizable(record: Record, backend: str, seed: int) -> None:
    events = record(backend, seed)
    assert sum(event.operation in ("put", "put_all", "try_put") for event in events) > 300
    overlapping = sum(after.start < before.end for before, after in itertools.pairwise(events))
    assert overlapping > 50
    verdict = search(events)
    assert verdict.linearizable, verdict.explain(events)
    assert follows(events, verdict.order, MailboxModel(BURST))


def swapped(events: list[Event]) -> list[Event]:
    """Two takes of one producer's mails that come from different puts, exchanged."""
    source = {
        mail: event for event in events if event.operation in ("put", "try_put") for mail in event.arguments
    }
    found = [index for index in takes(events) if events[index].result in source]
    one, other = next(
        (one, other)
        for one, other in itertools.combinations(found[len(found) // 2 :], 2)
        if source[events[one].result].end < source[events[other].result].start
        and (events[one].result.priority, events[one].result.deferrable)
        == (events[other].result.priority, events[other].result.deferrable)
    )
    changed = list(events)
    changed[one] = events[one]._replace(result=events[other].result)
    changed[other] = events[other]._replace(result=events[one].result)
    return changed


def lost(events: list[Event]) -> list[Event]:
    """Without one take: its mail is nowhere."""
    gone = takes(events)[len(takes(events)) // 2]
    return [event for index, event in enumerate(events) if index != gone]


def duplicated(events: list[Event]) -> list[Event]:
    """One mail is taken a second time, instead of the next one."""
    one, other = takes(events)[-2:]
    changed = list(events)
    changed[other] = events[other]._replace(result=events[one].result)
    return changed


def put_after_quiesce(events: list[Event]) -> list[Event]:
    """A put that was refused has succeeded, and close returned its mail."""
    ended = next(event.end for event in events if event.operation == "quiesce")
    late = next(
        index
        for index, event in enumerate(events)
        if event.operation in ("put", "try_put") and event.result in (False, Raised("MailboxClosedError"))
    )
    last = events[-1].end
    mail = events[late].arguments[0]
    accepted = events[late]._replace(operation="put", result=None, start=max(ended, last) + 1, end=last + 2)
    close = next(index for index, event in enumerate(events) if event.operation == "close")
    changed = list(events)
    changed[close] = events[close]._replace(
        result=[mail, *events[close].result], start=last + 3, end=last + 4
    )
    changed[late] = accepted
    return changed


@pytest.mark.parametrize("corrupt", [swapped, lost, duplicated, put_after_quiesce])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_corrupted_history_is_refused(
    record: Record, backend: str, corrupt: Callable[[list[Event]], list[Event]]
) -> None:
    # A history with much that overlaps may take more steps than the search may try: then it says neither.
    for seed in range(20):
        events = corrupt(record(backend, seed, PUTS_OF_A_CORRUPTED_ONE))
        verdict = search(events)
        assert verdict.linearizable is not True
        if verdict.linearizable is False:
            break
    assert verdict.linearizable is False
    assert "not linearizable" in verdict.explain(events)


# ---- against brute force


MAILS = [Mail(print, priority=p, urgent=u, deferrable=d) for p in (0, 1) for u in (0, 1) for d in (0, 1)]
PUTS = st.sampled_from([("put", (mail,)) for mail in MAILS] + [("put_all", (tuple(MAILS[:2]),))])
TAKES = st.sampled_from(
    [
        ("try_take", (-1, False)),
        ("try_take", (1, False)),
        ("try_take", (-1, True)),
        ("take", (-1, 0, False)),
        ("create_batch", ()),
        ("try_take_from_batch", ()),
        ("has_mail", ()),
        ("len", ()),
        ("arm_wakeup", (print,)),
        ("drain", ()),
        ("close", ()),
    ]
)


@st.composite
def small_histories(draw: st.DrawFn) -> list[Event]:
    """Two producers and a consumer: a true history with intervals stretched at random, often corrupted."""
    programs = {
        "a": draw(st.lists(PUTS | st.just(("quiesce", ())), max_size=3)),
        "b": draw(st.lists(PUTS, max_size=3)),
        "c": draw(st.lists(TAKES, max_size=5)),
    }
    left = [thread for thread, program in programs.items() for _ in program]
    order = draw(st.permutations(left))
    model = MailboxModel(1)
    events = []
    for moment, thread in enumerate(order):
        operation, arguments = programs[thread].pop(0)
        model, result = model.apply(operation, *arguments)
        events.append(Event(thread, operation, arguments, result, moment * 10, moment * 10))
    stretched = []
    ended: dict[str, int] = {}
    for number, event in enumerate(events):
        moment = event.start
        following = next(
            (other.start for other in events[number + 1 :] if other.thread == event.thread), 1000
        )
        start = draw(st.integers(max(ended.get(event.thread, -40) + 1, moment - 35), moment))
        end = draw(st.integers(moment, min(following - 1, moment + 35)))
        ended[event.thread] = end
        stretched.append(event._replace(start=start, end=end))
    return corrupted(draw, stretched) if draw(st.booleans()) else stretched


def corrupted(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    """Two outcomes of the consumer are exchanged, or a take gives something else."""
    found = [index for index, event in enumerate(events) if event.thread == "c"]
    if not found:
        return events
    changed = list(events)
    one, other = draw(st.sampled_from(found)), draw(st.sampled_from(found))
    if "take" in events[one].operation and "take" in events[other].operation and one != other:
        changed[one] = events[one]._replace(result=events[other].result)
        changed[other] = events[other]._replace(result=events[one].result)
    elif "take" in events[one].operation:
        changed[one] = events[one]._replace(result=draw(st.none() | st.sampled_from(MAILS)))
    elif events[one].operation in ("create_batch", "has_mail"):
        changed[one] = events[one]._replace(result=draw(st.booleans()))
    return changed


def by_brute_force(events: list[Event], model: Model) -> bool:
    """Every order of events, one by one."""

    def search(left: frozenset[int], model: Model) -> bool:
        due = min((events[index].end for index in left), default=0)
        return not left or any(
            search(left - {index}, after)
            for index in left
            if events[index].start <= due
            for after in model.step(*events[index][1:4])
        )

    return search(frozenset(range(len(events))), model)


@settings(derandomize=True, deadline=None, max_examples=examples(600))
@given(events=small_histories())
def test_the_search_with_and_without_a_guide_agrees_with_brute_force(events: list[Event]) -> None:
    model = MailboxModel(1)
    plain = linearize(events, model)
    assert plain.linearizable is by_brute_force(events, model)
    hints = mailbox_hints(events)
    if hints is not None:
        guided = linearize(events, model, hints=hints)
        assert guided.linearizable is plain.linearizable
    if plain.linearizable:
        assert follows(events, plain.order, model)


# ---- other subjects


def in_threads(*bodies: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=body, name=f"thread {n}") for n, body in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def pause() -> None:
    time.sleep(0)


def record_handover() -> list[Event]:
    handover = Recorder(Handover(4), HandoverModel, pause=pause)
    left = threading.Semaphore(2)

    def produce(first: int) -> None:
        for number in range(first, first + 100):
            handover.put(number)
        left.acquire()
        if not left.acquire(blocking=False):
            handover.finish()
        else:
            left.release()

    def consume() -> None:
        try:
            while True:
                handover.take()
                handover.take_all()
        except HandoverClosedError:
            handover.close()

    in_threads(lambda: produce(1), lambda: produce(1001), consume)
    return handover.events()


@pytest.mark.contract
def test_what_real_threads_did_at_a_handover_is_linearizable() -> None:
    events = record_handover()
    model = HandoverModel(4)
    verdict = linearize(events, model)
    assert verdict.linearizable, verdict.explain(events)
    took = next(index for index, event in enumerate(events) if event.operation == "take" and event.result)
    events[took] = events[took]._replace(result=5000)
    assert linearize(events, model).linearizable is False


def record_queue(kind: type[OrderedQueue] | type[UnorderedQueue], model: type[Model]) -> list[Event]:
    queue = Recorder(kind(6), model, pause=pause)
    handles: list[list[int]] = [[], []]
    owner_is_done = threading.Event()

    def complete(mine: list[int]) -> None:
        while mine or not owner_is_done.is_set():
            if mine:
                handle = mine.pop(0)
                queue.complete(handle, f"result of {handle}")
            pause()

    def own() -> None:
        queue.adopt()
        emitted = put = 0
        while emitted < 150:
            try:
                if put < 150:
                    handles[put % 2].append(queue.put(put))
                    put += 1
            except CapacityError:
                pause()
            emitted += len(queue.emit_many())
        owner_is_done.set()

    in_threads(own, *(lambda mine=mine: complete(mine) for mine in handles))
    return numbered_handles(queue.events())


@pytest.mark.contract
@pytest.mark.parametrize(("kind", "model"), [(OrderedQueue, OrderedModel), (UnorderedQueue, UnorderedModel)])
def test_what_real_threads_did_at_a_queue_is_linearizable(
    kind: type[OrderedQueue] | type[UnorderedQueue], model: type[OrderedModel] | type[UnorderedModel]
) -> None:
    events = record_queue(kind, model)
    verdict = linearize(events, model(6))
    assert verdict.linearizable, verdict.explain(events)
    won = next(index for index, event in enumerate(events) if event.operation == "complete")
    events[won] = events[won]._replace(result=False)
    assert linearize(events, model(6)).linearizable is False


# ---- the search itself


def test_a_search_that_is_given_up_says_so() -> None:
    mails = [Mail(print) for _ in range(8)]
    puts = [Event(f"t{n}", "put", (mail,), None, 0, 10) for n, mail in enumerate(mails)]
    right = Event("c", "try_take", (-1, False), mails[0], 11, 12)
    wrong = right._replace(result=None)
    assert linearize([*puts, right], MailboxModel()).linearizable
    verdict = linearize([*puts, wrong], MailboxModel(), limit=50)
    assert verdict.linearizable is None
    assert "given up" in verdict.explain([*puts, wrong])


def test_events_of_one_thread_must_not_overlap() -> None:
    events = [Event("a", "has_mail", (), False, 0, 5), Event("a", "has_mail", (), False, 3, 8)]
    with pytest.raises(ValueError, match="two events of one thread overlap"):
        linearize(events, MailboxModel())


def test_real_time_order_is_kept() -> None:
    put = Event("a", "put", (MAILS[0],), None, 0, 1)
    empty = Event("c", "has_mail", (), False, 2, 3)
    assert linearize([put, empty], MailboxModel()).linearizable is False
    overlapping = empty._replace(start=1)
    assert linearize([put, overlapping], MailboxModel()).linearizable
    assert not follows([put, overlapping], [0, 1], MailboxModel())
    assert follows([put, overlapping], [1, 0], MailboxModel())
    assert not follows([put, empty], [1, 0], MailboxModel())


def test_a_wake_up_may_be_armed_beside_mail_only_while_a_put_is_about_to_call_it() -> None:
    armed = Event("c", "arm_wakeup", (print,), True, 0, 1)
    slow = Event("a", "put", (MAILS[0],), None, 2, 9)
    fast = Event("b", "put", (MAILS[1],), None, 4, 5)
    again = armed._replace(start=6, end=7)
    assert linearize([armed, slow, fast, again], MailboxModel()).linearizable
    third = armed._replace(start=10, end=11)
    assert linearize([armed, slow, fast, again, third], MailboxModel()).linearizable is False
    assert linearize([slow, fast, again], MailboxModel()).linearizable is False


def test_a_guide_that_refuses_a_witness_is_found_out() -> None:
    class Liar(MailboxHints):
        def allowed(self, index: int, done: object) -> bool:
            return False

    events = [Event("a", "put", (MAILS[0],), None, 0, 1), Event("c", "has_mail", (), True, 2, 3)]
    with pytest.raises(AssertionError, match="refused a witness"):
        linearize(events, MailboxModel(), hints=Liar(events, "c"))
