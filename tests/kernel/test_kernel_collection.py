"""Garbage collection: a cycle through what the kernel holds is collected, and nothing that is used is.

`gc.get_referents` asks an object what the collector sees of it: it says whether each reference is seen once.
"""

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox.kernel import (
    BACKENDS,
    MAX_PRIORITY,
    WATERMARK,
    Deadlines,
    Handover,
    HandoverClosedError,
    Mail,
    OrderedQueue,
    ResultQueue,
    TaskMailbox,
    UnorderedQueue,
)


class Cell:
    """Something that others can be hung on, and that can be watched."""

    def __init__(self) -> None:
        self.holder: Any = None
        self.at_end: Callable[[Cell], Any] | None = None

    def __call__(self) -> None:
        pass

    def __del__(self) -> None:
        if self.at_end is not None:
            self.at_end(self)


class OwnHandover(Handover):
    """A child class, which has a dictionary."""


class OwnQueue(OrderedQueue):
    """As OwnHandover."""


class OwnDeadlines(Deadlines):
    """As OwnHandover."""


class OwnMailbox(TaskMailbox):
    """As OwnHandover."""


class OracleMailbox(TaskMailbox):
    """The last backend: the oracle in a build for tests, otherwise the only one."""

    def __new__(cls) -> "OracleMailbox":
        return super().__new__(cls, backend=BACKENDS[-1])


@pytest.fixture(autouse=True)
def _only_when_asked() -> Iterator[None]:
    gc.collect()
    # What was there before is not looked through again and again.
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


def item(cell: Cell, kind: type[Handover]) -> Handover:
    handover = kind(3)
    handover.put("another")
    handover.put([cell], 10)
    return handover


def failure(cell: Cell, kind: type[Handover]) -> Handover:
    handover = kind(3)
    handover.put("first")
    handover.fail(ValueError(cell))
    return handover


def armed_consumer(cell: Cell, kind: type[Handover]) -> Handover:
    handover = kind(3)
    assert handover.arm_wakeup_consumer(cell)
    return handover


def armed_producer(cell: Cell, kind: type[Handover]) -> Handover:
    handover = kind(1)
    handover.put("full")
    assert handover.arm_wakeup_producer(lambda: cell)
    return handover


def element(cell: Cell, kind: type[ResultQueue]) -> ResultQueue:
    queue: ResultQueue = kind(3)
    queue.renew(queue.put({"cell": cell}))
    return queue


def result(cell: Cell, kind: type[ResultQueue]) -> ResultQueue:
    queue: ResultQueue = kind(3)
    queue.put("running")
    queue.complete(queue.put("finished"), cell)
    return queue


def watermark(cell: Cell, kind: type[ResultQueue]) -> ResultQueue:
    queue: ResultQueue = kind(3)
    queue.put_watermark(cell)
    return queue


def restoring(cell: Cell, kind: type[ResultQueue]) -> ResultQueue:
    queue: ResultQueue = kind(1)
    queue.restore([("running", False, None), ("finished", True, cell), (cell, False, None)])
    queue.admit_restored()
    return queue


def timer(cell: Cell, kind: type[Deadlines]) -> Deadlines:
    deadlines = kind()
    deadlines.arm(2, "another")
    deadlines.arm(1, cell)
    return deadlines


def arrived(cell: Cell, kind: type[TaskMailbox]) -> TaskMailbox:
    mailbox = kind()
    mailbox.put_all([Mail(int), Mail(cell, urgent=True), Mail(print, cell, priority=3)])
    return mailbox


def batched(cell: Cell, kind: type[TaskMailbox]) -> TaskMailbox:
    mailbox = arrived(cell, kind)
    mailbox.create_batch()
    mailbox.try_take(MAX_PRIORITY)
    return mailbox


def armed_wakeup(cell: Cell, kind: type[TaskMailbox]) -> TaskMailbox:
    mailbox = kind()
    assert mailbox.arm_wakeup(int)
    assert mailbox.arm_wakeup(cell)
    return mailbox


CASES: list[Any] = [
    pytest.param(make, kind, id=f"{make.__name__}-{kind.__name__}")
    for makers, kinds in (
        ((item, failure, armed_consumer, armed_producer), (Handover, OwnHandover)),
        ((element, result, watermark, restoring), (OrderedQueue, UnorderedQueue, OwnQueue)),
        ((timer,), (Deadlines, OwnDeadlines)),
        ((arrived, batched, armed_wakeup), (TaskMailbox, OracleMailbox, OwnMailbox)),
    )
    for make in makers
    for kind in kinds
]
every_case = pytest.mark.parametrize(("make", "kind"), CASES)


@pytest.mark.contract("A cycle through what the kernel holds is collected.")
@every_case
def test_a_cycle_is_collected(make: Callable[[Cell, Any], Any], kind: type) -> None:
    cell = Cell()
    cell.holder = make(cell, kind)
    gone, gone_too = weakref.ref(cell), weakref.ref(cell.holder)
    del cell
    assert gone() is not None
    gc.collect()
    assert gone() is None
    assert gone_too() is None


@pytest.mark.contract
@every_case
def test_a_cycle_of_which_the_holder_is_used_stays(make: Callable[[Cell, Any], Any], kind: type) -> None:
    cell = Cell()
    cell.holder = holder = make(cell, kind)
    seen = gc.get_referents(holder)
    gone = weakref.ref(cell)
    del cell
    for _ in range(3):
        gc.collect()
    assert gone() is not None
    assert gone().holder is holder
    assert list(map(id, gc.get_referents(holder))) == list(map(id, seen))
    holder.clear() if isinstance(holder, Deadlines) else holder.close()
    del seen, holder
    gc.collect()
    assert gone() is None


@every_case
def test_what_a_finalizer_brings_back_is_whole(make: Callable[[Cell, Any], Any], kind: type) -> None:
    saved = list[Cell]()
    cell = Cell()
    cell.holder = make(cell, kind)
    cell.at_end = saved.append
    held = len(gc.get_referents(cell.holder))
    del cell
    gc.collect()
    assert len(saved) == 1
    assert len(gc.get_referents(saved[0].holder)) == held
    gone = weakref.ref(saved.pop())
    gc.collect()
    assert gone() is None


def test_the_collector_sees_each_reference_of_a_handover_once() -> None:
    handover, failed, first, second = Handover(2), ValueError(), object(), object()
    handover.put(first)
    handover.put(second)
    assert handover.arm_wakeup_producer(armed := Cell())
    assert of(handover) == [id(first), id(second), id(armed)]
    handover.take()
    assert of(handover) == [id(second)]
    handover.take()
    assert handover.arm_wakeup_consumer(armed)
    assert of(handover) == [id(armed)]
    handover.fail(failed)
    assert gc.get_referents(handover)[-1] == (failed, None)
    handover.close()
    assert of(handover) == []


@pytest.mark.parametrize("queue_type", [OrderedQueue, UnorderedQueue])
def test_the_collector_sees_each_reference_of_a_queue_once(queue_type: type[ResultQueue]) -> None:
    queue: ResultQueue = queue_type(4)
    names = [object() for _ in range(5)]
    handle = queue.put(names[0])
    queue.complete(queue.put(names[1]), names[2])
    queue.put_watermark(names[3])
    assert of(queue) == [id(names[0]), id(names[1]), id(names[2]), id(WATERMARK), id(names[3])]
    queue.complete(handle, names[4])
    assert len(of(queue)) == 6
    queue.emit_many(1)
    assert len(of(queue)) == 4
    queue.clear()
    assert of(queue) == []
    queue.restore([(names[0], False, None), (names[1], True, names[2])])
    assert sorted(of(queue)) == sorted([id(names[0]), id(names[1]), id(names[2])])
    queue.close()
    assert of(queue) == []


@pytest.mark.parametrize("kind", [TaskMailbox, OracleMailbox])
def test_the_collector_sees_each_reference_of_a_mailbox_once(kind: type[TaskMailbox]) -> None:
    mailbox, callback = kind(), Cell()
    mails = [Mail(int, priority=number % 50, urgent=number % 2 == 1) for number in range(200)]
    assert mailbox.arm_wakeup(callback)
    assert of(mailbox) == [id(callback)]
    for mail in mails[:100]:
        mailbox.put(mail)
    assert sorted(of(mailbox)) == sorted(map(id, mails[:100]))
    mailbox.create_batch()
    assert sorted(of(mailbox)) == sorted(map(id, mails[:100]))
    mailbox.put_all(mails[100:])
    assert sorted(of(mailbox)) == sorted(map(id, mails))
    taken = [mailbox.try_take() for _ in range(60)]
    assert sorted(of(mailbox)) == sorted(id(mail) for mail in mails if mail not in taken)
    mailbox.close()
    assert of(mailbox) == []


def test_the_collector_sees_each_reference_of_deadlines_once() -> None:
    deadlines, payloads = Deadlines(), [object() for _ in range(100)]
    handles = [deadlines.arm(number % 7, payload) for number, payload in enumerate(payloads)]
    for handle in handles[::2]:
        deadlines.cancel(handle)
    assert sorted(of(deadlines)) == sorted(map(id, payloads[1::2]))
    deadlines.clear()
    assert of(deadlines) == []


def of(holder: object) -> list[int]:
    """The idents of what the collector sees, but for the class and the spare member."""
    seen = gc.get_referents(holder)
    return [id(thing) for thing in seen if thing is not None and thing is not type(holder)]


@contextlib.contextmanager
def collecting() -> Iterator[None]:
    """Another thread collects all the while, and has at the end."""
    over, collections = threading.Event(), list[int]()

    def collect() -> None:
        while not over.is_set():
            collections.append(gc.collect())

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        yield
    finally:
        over.set()
        collector.join()
    assert collections
    gc.collect()
    assert not any(isinstance(thing, Ring) for thing in gc.get_objects())


def test_collections_in_the_midst_of_completions_harm_nothing() -> None:
    rounds, queue = 2000, UnorderedQueue(64)
    handles, finished = Handover(64), Handover(128)

    def complete() -> None:
        while (handle := handles.take()) != "end":
            queue.complete(handle, Ring(handle))
            finished.put("one")

    def put_and_emit() -> None:
        results = list[Any]()
        for number in range(rounds):
            if queue.is_full:
                finished.take()
                finished.take_all()
                results += queue.emit_many()
            handles.put(queue.put(Ring(number)))
        handles.put("end")
        completer.join()
        results += queue.emit_many()
        assert sorted(element.value for element, _ in results) == list(range(rounds))
        assert all(element.itself is element and result.itself is result for element, result in results)

    with collecting():
        completer = threading.Thread(target=complete)
        completer.start()
        put_and_emit()


def test_collections_in_the_midst_of_a_handover_harm_nothing() -> None:
    rounds, handover = 2000, Handover(8)

    def produce() -> None:
        for number in range(rounds):
            handover.put(Ring(number), 1)
        handover.finish()

    def consume() -> list[Any]:
        items = list[Any]()
        with contextlib.suppress(HandoverClosedError):
            while True:
                items.append(handover.take().value)
                items.extend(ring.value for ring in handover.take_all())
        return items

    with collecting():
        producer = threading.Thread(target=produce)
        producer.start()
        assert consume() == list(range(rounds))
        producer.join()


@pytest.mark.parametrize("kind", [TaskMailbox, OracleMailbox])
def test_collections_in_the_midst_of_mail_harm_nothing(kind: type[TaskMailbox]) -> None:
    rounds, mailbox, done = 1000, kind(), list[Any]()

    def produce() -> None:
        for number in range(rounds):
            mailbox.put(Mail(done.append, Ring(number), urgent=number % 5 == 0, priority=number % 3))

    def consume() -> None:
        while len(done) < 2 * rounds:
            for mail in (mailbox.take(), mailbox.try_take(2)):
                if mail is not None:
                    mail.run()
            mailbox.run_batch()
        assert sorted(ring.value for ring in done) == sorted([*range(rounds), *range(rounds)])
        assert all(ring.itself is ring for ring in done)
        done.clear()

    with collecting():
        producers = [threading.Thread(target=produce) for _ in range(2)]
        for producer in producers:
            producer.start()
        consume()
        for producer in producers:
            producer.join()


class Ring:
    """Refers to itself, so only the collector frees it."""

    def __init__(self, value: object) -> None:
        self.value = value
        self.itself = self
