"""The kernel's objects in the child of a fork; run as a script, which forks.

`forked_run.py SCENARIO` exits with status 0 if everything was as it should be. A child that hangs is ended by
an alarm, and its parent sees that.
"""

import contextlib
import gc
import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from pillarbox.kernel import (
    BACKENDS,
    Deadlines,
    ForkedError,
    Handover,
    HandoverClosedError,
    Mail,
    OrderedQueue,
    TaskMailbox,
    UnorderedQueue,
)

# A fork of a process with threads is what this is about; newer Pythons warn of it.
warnings.filterwarnings("ignore", category=DeprecationWarning)

SECONDS = 60


def in_child(function: Callable[[], Any]) -> None:
    """Forks, calls the function in the child, and fails if it does or does not return in time."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        status = 1
        try:
            function()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    assert wait_for(pid) == 0


def wait_for(pid: int) -> int:
    """The exit status of a child; the number of the signal that ended it is negative."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def refused(*calls: Callable[[], Any]) -> None:
    """Every call raises ForkedError, which names the class and this process."""
    for number, call in enumerate(calls):
        refusal = None
        try:
            call()
        except ForkedError as error:
            refusal = error
        assert refusal is not None, f"call {number} was not refused"
        assert refusal.pid == os.getpid()
        assert refusal.kind in str(refusal) and str(refusal.pid) in str(refusal)


def calls_of(thing: Any) -> list[Callable[[], Any]]:
    """A call of every method and property that looks into an object."""
    if isinstance(thing, Handover):
        return [
            lambda: thing.put(1),
            lambda: thing.put(1, timeout=0),
            lambda: thing.try_put(1),
            thing.finish,
            lambda: thing.fail(ValueError()),
            lambda: thing.arm_wakeup_producer(int),
            thing.take,
            lambda: thing.take(timeout=0),
            thing.try_take,
            thing.take_all,
            thing.close,
            thing.wake_up,
            lambda: thing.arm_wakeup_consumer(int),
            lambda: thing.ended,
            lambda: len(thing),
            lambda: bool(thing),
            thing.statistics,
        ]
    if isinstance(thing, Deadlines):
        return [
            lambda: thing.arm(1, 1),
            lambda: thing.cancel(1),
            thing.expire,
            thing.clear,
            thing.next_deadline,
            thing.peek,
            lambda: len(thing),
            thing.adopt,
        ]
    if isinstance(thing, TaskMailbox):
        return [
            lambda: thing.put(Mail(int)),
            lambda: thing.try_put(Mail(int)),
            lambda: thing.put_all([Mail(int), Mail(int)]),
            thing.quiesce,
            thing.try_take,
            thing.take,
            lambda: thing.take(timeout=0),
            thing.create_batch,
            thing.try_take_from_batch,
            thing.run_batch,
            thing.has_mail,
            thing.drain,
            thing.close,
            lambda: thing.arm_wakeup(int),
            thing.check_is_mailbox_thread,
            thing.adopt,
            lambda: len(thing),
            lambda: thing.state,
            thing.statistics,
        ]
    return [
        lambda: thing.put(1),
        lambda: thing.put_watermark(1),
        lambda: thing.renew(1),
        lambda: thing.complete(1, 1),
        thing.has_completed,
        thing.emit,
        thing.emit_many,
        thing.snapshot,
        thing.clear,
        thing.close,
        lambda: thing.restore([]),
        thing.admit_restored,
        thing.adopt,
        lambda: len(thing),
        lambda: bool(thing),
        lambda: thing.is_full,
        lambda: thing.is_empty,
        lambda: thing.in_flight,
        lambda: thing.restoring,
        thing.statistics,
    ]


MAKERS: dict[str, Callable[[], Any]] = {
    "handover": lambda: Handover(2),
    "ordered": lambda: OrderedQueue(2),
    "unordered": lambda: UnorderedQueue(2),
    "deadlines": Deadlines,
    **{f"mailbox, {backend}": partial(TaskMailbox, backend=backend) for backend in BACKENDS},
}


def fill(thing: Any, what: Any) -> None:
    """It holds `what`."""
    if isinstance(thing, TaskMailbox):
        thing.put(Mail(id, what))
    elif isinstance(thing, Deadlines):
        thing.arm(1, what)
    else:
        thing.put(what)


def used(thing: Any) -> None:
    """It works."""
    if isinstance(thing, Handover):
        taken = list[Any]()
        thread = threading.Thread(target=lambda: taken.append(thing.take()))
        thread.start()
        thing.put("item")
        thread.join()
        assert taken == ["item"]
    elif isinstance(thing, Deadlines):
        thing.arm(0, "payload")
        assert thing.expire() == ["payload"]
    elif isinstance(thing, TaskMailbox):
        mail = Mail(int)
        thread = threading.Thread(target=thing.put, args=(mail,))
        thread.start()
        assert thing.take() is mail
        thread.join()
    else:
        assert thing.complete(thing.put("element"), "result")
        assert thing.emit() == ("element", "result")


# ---- scenarios


def everything_is_refused() -> None:
    """In the child; the parent's object works on."""
    for make in MAKERS.values():
        thing = make()
        in_child(lambda thing=thing: (refused(*calls_of(thing)), repr(thing)))
        used(thing)


def new_objects_work_in_the_child_and_not_in_its_child() -> None:
    def child() -> None:
        for make in MAKERS.values():
            thing = make()
            used(thing)
            in_child(lambda thing=thing, make=make: (refused(*calls_of(thing)), used(make())))
            used(thing)

    in_child(child)


def a_thread_sleeps_in_it() -> None:
    """At the moment of the fork. The child lets go of its copy; the parent's thread has its item later."""
    handover, taken = Handover(1), list[Any]()
    thread = threading.Thread(target=lambda: taken.append(handover.take()))
    thread.start()
    while handover.statistics().consumer_waits == 0:
        pass

    def child() -> None:
        nonlocal handover
        refused(*calls_of(handover))
        del handover
        gc.collect()

    in_child(child)
    handover.put("item")
    thread.join()
    assert taken == ["item"]


def threads_are_busy_with_it() -> None:
    """Many forks while threads put, take and complete: no child hangs, and the parent loses nothing."""
    handover, queue, over = Handover(2), UnorderedQueue(4), threading.Event()
    mailboxes = [TaskMailbox(backend=backend) for backend in BACKENDS]
    handles, put, taken = Handover(4), list[int](), list[int]()

    def produce() -> None:
        while not over.is_set():
            if handover.put(len(put), timeout=1e-5):
                put.append(len(put))
            for mailbox in mailboxes:
                mailbox.put(Mail(int))
        handover.finish()

    def consume() -> None:
        with contextlib.suppress(HandoverClosedError):
            while True:
                if (item := handover.take(timeout=1e-5)) is not None:
                    taken.append(item)

    def complete() -> None:
        while (handle := handles.take()) != "end":
            queue.complete(handle, handle)

    shared = [handover, queue, *mailboxes]
    threads = [threading.Thread(target=body) for body in (produce, consume, complete)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        for _ in range(4):
            handles.put(queue.put("element"))
        in_child(lambda: refused(*(call for thing in shared for call in calls_of(thing))))
        for mailbox in mailboxes:
            mailbox.take(timeout=1e-5)
            mailbox.drain()
        while not queue.is_empty:
            queue.emit_many()
    over.set()
    handles.put("end")
    for thread in threads:
        thread.join()
    assert taken == put


class Tracked:
    """Says in which process it is released."""

    released: ClassVar[list[int]] = []

    def __del__(self) -> None:
        self.released.append(os.getpid())


def nothing_is_released_by_the_child() -> None:
    """It forgets its copy, with all that was in there, and a cycle through it stays."""
    things = [make() for make in MAKERS.values()]
    gone = list(map(weakref.ref, things))
    for index in range(len(things)):
        fill(things[index], Tracked())

    def child() -> None:
        things.clear()
        gc.collect()
        assert all(ref() is None for ref in gone)
        assert Tracked.released == []

    in_child(child)
    things.clear()
    assert Tracked.released == [os.getpid()] * len(gone)


def a_cycle_through_it_stays_in_the_child() -> None:
    class Cell:
        def __init__(self, thing: Any) -> None:
            self.thing = thing
            fill(thing, self)

    cells = [Cell(make()) for make in MAKERS.values()]
    gone = [weakref.ref(cell) for cell in cells]

    def child() -> None:
        cells.clear()
        gc.collect()
        assert all(ref() is not None for ref in gone)

    in_child(child)
    cells.clear()
    gc.collect()
    assert all(ref() is None for ref in gone)


def a_signal_handler_forks_in_the_midst_of_a_wait() -> None:
    """The child's wait ends with the error, the parent's goes on."""
    handover = Handover(1)
    fork_within(handover, handover.take, lambda: handover.put("item"), "consumer_waits")
    handover.put("item")
    fork_within(handover, lambda: handover.put("more"), handover.take, "producer_waits")


def a_mail_of_a_batch_forks() -> None:
    """The child runs nothing of the rest of the batch, the parent all of it."""
    mailbox, said, children = TaskMailbox(), list[str](), list[int]()

    def fork() -> None:
        if pid := os.fork():
            children.append(pid)
        else:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)

    mailbox.put_all([Mail(fork), Mail(said.append, "the rest")])
    try:
        ran = mailbox.run_batch()
    except ForkedError:
        os._exit(0 if not children and not said else 1)
    if not children:
        os._exit(2)
    assert (ran, said) == (2, ["the rest"])
    assert wait_for(*children) == 0


def fork_within(handover: Handover, wait: Callable[[], Any], end: Callable[[], Any], waits: str) -> None:
    """`wait` waits until `end` is called. In its midst a signal handler forks, and ends it in the parent."""
    parent, children = os.getpid(), list[int]()

    def fork(*_: object) -> None:
        if pid := os.fork():
            children.append(pid)
            end()
        else:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)

    def interrupt() -> None:
        while getattr(handover.statistics(), waits) == 0:
            pass
        os.kill(parent, signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, fork)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert wait()
    except ForkedError:
        os._exit(0 if os.getpid() != parent else 1)
    if os.getpid() != parent:
        os._exit(1)
    thread.join()
    assert wait_for(children.pop()) == 0


SCENARIOS = (
    everything_is_refused,
    new_objects_work_in_the_child_and_not_in_its_child,
    a_thread_sleeps_in_it,
    threads_are_busy_with_it,
    nothing_is_released_by_the_child,
    a_cycle_through_it_stays_in_the_child,
    a_signal_handler_forks_in_the_midst_of_a_wait,
    a_mail_of_a_batch_forks,
)

if __name__ == "__main__":
    {scenario.__name__: scenario for scenario in SCENARIOS}[sys.argv[1]]()
