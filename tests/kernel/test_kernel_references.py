"""References: nothing is leaked, nothing released early, and releasing may call back into the kernel."""

import copy
import gc
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.kernel import Handover, Mail, OrderedQueue, ResultQueue, TaskMailbox, UnorderedQueue

both = pytest.mark.parametrize("queue_type", [OrderedQueue, UnorderedQueue])


class Tracked:
    """Calls a function when it goes."""

    def __init__(self, at_end: Callable[[], Any] = int) -> None:
        self.at_end = at_end

    def __call__(self) -> None:
        pass

    def __del__(self) -> None:
        self.at_end()


@pytest.mark.contract
def test_a_hundred_thousand_mails_leave_no_object_and_no_reference_behind() -> None:
    mailbox, argument = TaskMailbox(), object()
    references, mails = sys.getrefcount(argument), count_of(Mail)
    for number in range(100_000):
        mailbox.put(Mail(id, argument))
        if number % 3 == 0:
            mailbox.try_take()
        elif number % 3 == 1:
            mailbox.create_batch()
            mailbox.try_take_from_batch()
        if number % 1000 == 999:
            mailbox.drain()
    mailbox.close()
    assert not mailbox.try_put(Mail(id, argument))
    assert sys.getrefcount(argument) == references
    assert count_of(Mail) == mails


@pytest.mark.contract
@both
def test_a_hundred_thousand_entries_leave_no_reference_behind(
    queue_type: type[OrderedQueue] | type[UnorderedQueue],
) -> None:
    queue, element, result = queue_type(100), object(), object()
    before = sys.getrefcount(element), sys.getrefcount(result)
    for number in range(100_000):
        handle = queue.put(element)
        if number % 10 == 0:
            handle = queue.renew(handle)
        if number % 100 == 0:
            queue.put_watermark(result)
            queue.snapshot()
        queue.complete(handle, result)
        queue.complete(handle, result)
        if number % 2:
            queue.emit()
        if number % 50 == 49:
            queue.emit_many() if number % 500 else queue.clear()
    queue.close()
    assert (sys.getrefcount(element), sys.getrefcount(result)) == before


def count_of(kind: type) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_a_mailbox_holds_its_mails_and_lets_them_go_with_itself() -> None:
    mailbox, tracked = TaskMailbox(), Tracked()
    gone = weakref.ref(tracked)
    mailbox.put(Mail(tracked))
    mailbox.create_batch()
    mailbox.put(Mail(tracked, urgent=True))
    mailbox.try_take(5)
    mailbox.put(Mail(tracked))
    del tracked
    gc.collect()
    assert gone() is not None
    del mailbox
    assert gone() is None


@both
def test_a_queue_holds_elements_and_results_and_lets_them_go_with_itself(
    queue_type: type[OrderedQueue] | type[UnorderedQueue],
) -> None:
    queue, element, result, mark = queue_type(5), Tracked(), Tracked(), Tracked()
    gone = [weakref.ref(thing) for thing in (element, result, mark)]
    queue.complete(queue.put(element), result)
    queue.put_watermark(mark)
    queue.put(element)
    del element, result, mark
    gc.collect()
    assert all(ref() is not None for ref in gone)
    del queue
    assert all(ref() is None for ref in gone)


@pytest.mark.contract
def test_releasing_a_mail_may_put_into_the_same_mailbox() -> None:
    mailbox = TaskMailbox()
    put = list[bool]()
    mailbox.put(Mail(Tracked(lambda: put.append(mailbox.try_put(Mail(int))))))
    mailbox.try_take()
    assert (put, len(mailbox)) == ([True], 1)
    mailbox.drain()
    mailbox.put(Mail(Tracked(lambda: put.append(mailbox.try_put(Mail(int))))))
    mailbox.close()
    assert put == [True, False]


def test_replacing_a_wakeup_may_use_the_same_mailbox() -> None:
    mailbox = TaskMailbox()
    mailbox.arm_wakeup(Tracked(lambda: mailbox.put(Mail(int))))
    mailbox.arm_wakeup(int)
    assert len(mailbox) == 1


@both
def test_releasing_an_element_or_a_result_may_use_the_same_queue(
    queue_type: type[OrderedQueue] | type[UnorderedQueue],
) -> None:
    queue: ResultQueue = queue_type(3)
    seen = list[int]()

    def look() -> None:
        seen.append(len(queue))
        queue.snapshot()

    queue.complete(-1, Tracked(look))
    handle = queue.put(Tracked(look))
    queue.complete(handle, Tracked(look))
    queue.emit()
    queue.complete(queue.put(Tracked(look)), Tracked(look))
    queue.clear()
    assert seen == [0] * 5


def test_releasing_an_item_may_use_the_same_handover() -> None:
    handover = Handover(2)
    seen = list[int]()
    handover.put(Tracked(lambda: seen.append(len(handover))))
    handover.take()
    handover.put(Tracked(lambda: seen.append(handover.try_put("late"))))
    handover.close()
    assert seen == [0, False]


@pytest.mark.parametrize("thing", [Mail(int), TaskMailbox(), OrderedQueue(1), UnorderedQueue(1), Handover(1)])
@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_belongs_to_threads_is_neither_copied_nor_pickled(
    thing: object, way: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError):
        way(thing)
