"""Recorded histories of threads, and the search for an order in which a model could do them one by one.

The search of J. M. Wing and C. Gong ("Testing and Verifying Concurrent Objects", Journal of Parallel and
Distributed Computing 17, 1993): choose an operation that no other one precedes, do it on the model, go on; go
back where the outcomes differ. With the cache of G. Lowe ("Testing for Linearizability", Concurrency and
Computation: Practice and Experience 29, 2017): no state is searched twice that has done the same operations.
What is done is here one number for each thread, for a thread does one thing after the other.

A `Recorder` stands in front of a subject and notes every operation. It is thread-safe and takes no lock while
an operation runs; the search has values only, and is for any thread.
"""

# Why each thread has a list of its own. A list with a lock would order the threads by that lock, and the
# races that are sought would be gone from what is recorded. The clock alone orders them; equal readings
# make operations overlap, which hides an order and never invents one.
#
# Why the subject's stand-in looks its methods up once. A history of a fast subject is only of use if
# recording is short beside the operation, or no two of them ever overlap.
#
# Why the pause is the caller's. Under a GIL two operations overlap only where one gives it up; a recorder
# that slept by itself would change the timing of a subject that has races of its own.
#
# Why a search of our own. Porcupine (Go) and Knossos (Clojure) would have to be installed beside Python and
# get each model in their own language; a model here is the same value that the suites compare with.
#
# Why models are values that never change. The search goes back as often as it goes on: with a model that is
# changed in place each step back would need its inverse, and a wrong inverse is a wrong verdict. A step of
# such a model costs more; the cache and the hints see to it that there are few.
#
# Why a witness is checked anew by `follows`, which does not search: an error in the cache may give a
# verdict without a reason, and then at least not one that says a history is right.
#
# Why hints, and not a faster search. Of three producers with 300 puts each the search without them has to
# find out by trial which put came first, and there are more orders than states that fit into memory. The
# contract says it: a take that gave one mail and accepts another one shows which was put before. Hints that
# are wrong refuse a witness, so each has its proof beside it, and the search goes once more without them
# before it says no.
#
# Why a hint may only refuse or settle, and not choose. One that chose the next event would be believed
# where it is wrong; one that refuses too much is found out, because the search without it gets through.
#
# The hints are those of mailboxes alone: queues hold little at a time. Each thing that they
# say follows from the contract, and only that makes it safe; the argument stands beside it. A test compares
# the search with and without on random small histories, true and corrupted.

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pillarbox.testing.models import MIN_PRIORITY, MailboxModel, MailLike, Model, Raised, accepts

# -- histories ------------------------------------------------------------------------------------


class Event(NamedTuple):
    """One operation of one thread. It was before another if its `end` is less than the other's `start`."""

    thread: str
    operation: str
    arguments: tuple[Any, ...]
    """All of them, by position, default values included."""
    result: Any
    """The value that was returned, or `Raised`."""
    start: int
    end: int
    """Tickets: they count the moments at which operations began and ended, over all threads."""


class Recorder:
    """A subject's stand-in: has its methods, and notes every call. Thread-safe as far as the subject is.

    subject: what is recorded. model: its model's class, which knows the operations and their arguments.

    pause: called between the beginning of an operation and the call of the subject, and between its return
    and the end. One that lets other threads run (`time.sleep(0)`, now and then) makes operations overlap that
    would not under a GIL.

    An attribute that is not an operation of the model is the subject's own. Call `events` when all
    threads have come to rest.
    """

    def __init__(
        self,
        subject: object,
        model: type[Model],
        *,
        pause: Callable[[], object] | None = None,
    ) -> None:
        self._subject: Any = subject
        self._model = model
        self._pause = pause or _no_pause
        # For each thread its name and, of each operation, what `events` takes apart.
        self._logs: list[tuple[str, list[tuple[Any, ...]]]] = []
        self._lock = threading.Lock()
        self._mine = threading.local()

    def __getattr__(self, operation: str) -> Any:
        method = getattr(self._subject, operation)
        if operation not in self._model.operations or not callable(method):
            return method
        recorded = self._recorded(operation, method)
        # The next time there is no need to come here.
        setattr(self, operation, recorded)
        return recorded

    def __len__(self) -> int:
        length: int = self._recorded("len", self._subject.__len__)()
        return length

    def events(self) -> list[Event]:
        """Everything that was recorded, in the order of the beginnings."""
        with self._lock:
            logs = [(name, list(notes)) for name, notes in self._logs]
        moments = sorted({moment for _, notes in logs for note in notes for moment in note[-2:]})
        ticket = {moment: number for number, moment in enumerate(moments)}
        found = [
            Event(
                name,
                operation,
                self._model.bind(operation, arguments, words),
                result,
                ticket[start],
                ticket[end],
            )
            for name, notes in logs
            for operation, arguments, words, result, start, end in notes
        ]
        return sorted(found, key=lambda event: (event.start, event.end))

    def _log(self) -> list[tuple[Any, ...]]:
        log: list[tuple[Any, ...]] | None = getattr(self._mine, "log", None)
        if log is None:
            log = self._mine.log = []
            name = threading.current_thread().name
            with self._lock:
                taken = Counter(existing.partition("#")[0] for existing, _ in self._logs)[name]
                self._logs.append((f"{name}#{taken + 1}" if taken else name, log))
        return log

    def _recorded(self, operation: str, method: Callable[..., Any]) -> Callable[..., Any]:
        # Perf_counter is the monotonic clock that is the finest on every platform. Equal readings make
        # operations overlap, which can only hide an order, never invent one.
        clock = time.perf_counter_ns
        pause = self._pause

        def call(*arguments: object, **keywords: object) -> Any:
            log = self._log()
            arguments = tuple(_kept(argument) for argument in arguments)
            outcome: Any = Raised("nothing")
            start = clock()
            pause()
            try:
                outcome = result = method(*arguments, **keywords)
                return result
            except BaseException as error:
                outcome = Raised(type(error).__name__)
                raise
            finally:
                pause()
                end = clock()
                log.append((operation, arguments, keywords, _kept(outcome), start, end))

        return call


def _no_pause() -> None:
    pass


def _kept(value: object) -> Any:
    """A value that nobody changes afterwards: what can be read once becomes a tuple, a list is copied."""
    if isinstance(value, Iterator):
        return tuple(value)
    return list(value) if type(value) is list else value


def numbered_handles(events: list[Event]) -> list[Event]:
    """The history of a result queue with handles as `QueueModel` has them: numbers of attempts.

    For histories whose queue was made before them and is restored in none of them; its owner's events tell
    the numbers. A handle that the owner never got becomes 0.
    """
    numbers: dict[Any, int] = {}
    made = 0
    for event in events:
        if event.operation in ("put", "put_watermark", "renew") and not isinstance(event.result, Raised):
            made += 1
            if event.operation != "put_watermark":
                numbers[event.result] = made
    renamed = []
    for event in events:
        if event.operation in ("complete", "renew"):
            handle = numbers.get(event.arguments[0], 0)
            event = event._replace(arguments=(handle, *event.arguments[1:]))
        if event.operation in ("put", "renew") and not isinstance(event.result, Raised):
            event = event._replace(result=numbers[event.result])
        renamed.append(event)
    return renamed


# -- the search -----------------------------------------------------------------------------------

MAX_STATES = 1_000_000
# States to visit for each event, where only the place of a mistake is sought.
UNHINTED_STATES_PER_EVENT = 3

PUTS = frozenset({"put", "put_all", "try_put"})
OTHERS = PUTS | {"quiesce"}


@dataclass(frozen=True)
class Verdict:
    """The outcome of a search."""

    linearizable: bool | None
    """None if the search was given up."""
    order: list[int]
    """Indices of events: the witness, or the longest beginning of one that was reached."""
    candidates: list[int]
    """The end of that beginning: the events that could have been next, and did not fit."""
    states: int
    """The number of states that the search visited."""

    def explain(self, events: Sequence[Event], last: int = 8) -> str:
        """In words, for the message of a test."""
        if self.linearizable:
            return f"linearizable, {self.states} states searched"
        what = "given up" if self.linearizable is None else "not linearizable"
        lines = [f"{what}: {self.states} states searched, {len(self.order)} events placed, the last of them:"]
        lines += [f"  {events[i]}" for i in self.order[-last:]]
        lines.append("and none of these can follow:")
        lines += [f"  {events[i]}" for i in self.candidates]
        return "\n".join(lines)


@dataclass
class _Choice:
    """A place to go back to: the model and the counts there, and what has not been tried."""

    model: Model
    done: tuple[int, ...]
    left: Iterator[tuple[int, int, Model]]


def linearize(
    events: Sequence[Event], model: Model, *, hints: MailboxHints | None = None, limit: int = MAX_STATES
) -> Verdict:
    """Look for a witness: an order of all events that the model can do with these outcomes, one by one.

    events: each thread's must follow one another; ValueError if two of them overlap. model: the subject's
    state before the first. hints: of a mailbox, `mailbox_hints(events)`. limit: of the states to visit; the
    verdict is None beyond.
    """
    verdict = _Search(events, model, hints, hints, limit).run()
    if hints is None or verdict.linearizable:
        return verdict
    # Hints let the search end where a mistake became certain, which may be long before it shows. Without
    # their refusals the search gets nearer to it; should it get through, they have lied.
    unhinted = _Search(events, model, hints, None, UNHINTED_STATES_PER_EVENT * len(events)).run()
    if unhinted.linearizable:
        raise AssertionError("the hints of this search refused a witness")
    nearer = max(verdict, unhinted, key=lambda found: len(found.order))
    return replace(nearer, linearizable=verdict.linearizable, states=verdict.states)


def follows(events: Sequence[Event], order: Sequence[int], model: Model) -> bool:
    """True if `order` is a witness; checks it anew, without the search."""
    if sorted(order) != list(range(len(events))):
        return False
    latest_start = -1
    models: tuple[Model, ...] = (model,)
    for index in order:
        event = events[index]
        if event.end < latest_start:
            return False
        latest_start = max(latest_start, event.start)
        models = tuple(m for now in models for m in now.step(event.operation, event.arguments, event.result))
    return bool(models)


class _Search:
    """One search. order: hints of what to try first. hints: those that also refuse and settle."""

    def __init__(
        self,
        events: Sequence[Event],
        model: Model,
        order: MailboxHints | None,
        hints: MailboxHints | None,
        limit: int,
    ) -> None:
        self.events = events
        self.model = model
        self.order = order
        self.hints = hints
        self.limit = limit
        self.threads = sorted({event.thread for event in events})
        self.programs = programs(events, self.threads)

    def run(self) -> Verdict:
        start = (0,) * len(self.threads)
        seen: set[tuple[tuple[int, ...], Hashable]] = set()
        stack = [_Choice(self.model, start, self.successors(self.model, start))]
        order: list[int] = []
        best, best_end = order[:], start
        while stack:
            choice = stack[-1]
            step = next(choice.left, None)
            if step is None:
                stack.pop()
                if order:
                    order.pop()
                continue
            index, thread, after = step
            done = (*choice.done[:thread], choice.done[thread] + 1, *choice.done[thread + 1 :])
            state = (done, after.key() if self.hints is None else self.hints.key(after))
            if state in seen:
                continue
            seen.add(state)
            order.append(index)
            if len(order) > len(best):
                best, best_end = order[:], done
            if len(order) == len(self.events):
                return Verdict(True, order, [], len(seen))
            if len(seen) >= self.limit:
                return Verdict(None, best, self.candidates(best_end), len(seen))
            stack.append(_Choice(after, done, self.successors(after, done)))
        if not self.events:
            return Verdict(True, [], [], 0)
        return Verdict(False, best, self.candidates(best_end), len(seen))

    def candidates(self, done: tuple[int, ...]) -> list[int]:
        """The events that no event before which nothing was left precedes."""
        following = [p[count] for p, count in zip(self.programs, done, strict=True) if count < len(p)]
        due = min((self.events[index].end for index in following), default=0)
        return [index for index in following if self.events[index].start <= due]

    def successors(self, model: Model, done: tuple[int, ...]) -> Iterator[tuple[int, int, Model]]:
        """Candidates for the next place: the event, the number of its thread, the model after it."""
        found = self.candidates(done)
        hints = self.hints
        if hints is not None:
            found = [index for index in found if hints.allowed(index, done)]
        found.sort(key=self.order.rank if self.order else lambda index: self.events[index].end)
        for index in found:
            event = self.events[index]
            thread = self.threads.index(event.thread)
            for after in model.step(event.operation, event.arguments, event.result):
                yield index, thread, after
                if hints is not None and hints.settled(index, model, after):
                    return


def programs(events: Sequence[Event], threads: Sequence[str]) -> list[list[int]]:
    """For each thread the indices of its events, in their order; ValueError if two of one thread overlap."""
    found: list[list[int]] = [[] for _ in threads]
    number = {thread: position for position, thread in enumerate(threads)}
    for index in sorted(range(len(events)), key=lambda i: (events[i].start, events[i].end)):
        program = found[number[events[index].thread]]
        if program and events[program[-1]].end > events[index].start:
            raise ValueError(f"two events of one thread overlap: {events[program[-1]]} and {events[index]}")
        program.append(index)
    return found


# -- hints of mailboxes --------------------------------------------------------------------------


def mailbox_hints(events: Sequence[Event]) -> MailboxHints | None:
    """The hints of a history of a mailbox; None if others than one thread do more than put and quiesce."""
    consumers = {event.thread for event in events if event.operation not in OTHERS}
    return MailboxHints(events, consumers.pop()) if len(consumers) == 1 else None


class MailboxHints:
    """Hints of the contract of a mailbox to the search in one history.

    Indices are those of the events; `done` is, for each thread in the order of their names, how many of its
    events have been placed. consumer: the one thread that does more than put and quiesce.
    """

    def __init__(self, events: Sequence[Event], consumer: str) -> None:
        threads = sorted({event.thread for event in events})
        self._threads = len(threads)
        self._events = events
        self._consumer = consumer
        by_thread = programs(events, threads)
        place = {
            index: (thread, position + 1)
            for thread, program in enumerate(by_thread)
            for position, index in enumerate(program)
        }
        self._place = place
        program = by_thread[threads.index(consumer)]
        outs = [taken for index in program for taken in taken_by(index, events[index])]
        put_by = put_events(events)
        self._each_once = len(put_by) == sum(
            len(mails_of(event)) for event in events if event.operation in PUTS and accepted(event)
        )
        # For each event, and each thread: how many events of the thread must have been placed before it.
        self._needs: dict[int, list[int]] = {}
        self._order_of_puts(outs, put_by)
        self._contents_of_batches(program, outs, put_by)
        turn = {out.mail: number for number, out in enumerate(outs)}
        never = len(outs)
        self._turn = {
            index: min((turn.get(mail, never) for mail in mails_of(events[index])), default=never)
            for index in place
            if events[index].operation in PUTS
        }

    def rank(self, index: int) -> Any:
        """The consumer first, then puts in the order in which their mails come out, then quiesce."""
        if self._events[index].thread == self._consumer:
            return (0, 0)
        turn = self._turn.get(index)
        return (2, 0) if turn is None else (1, turn)

    def allowed(self, index: int, done: Sequence[int]) -> bool:
        """False if another event must come first: see `_order_of_puts` and `_contents_of_batches`."""
        needs = self._needs.get(index)
        return needs is None or all(has >= need for has, need in zip(done, needs, strict=True))

    def settled(self, index: int, before: Model, after: Model) -> bool:
        """True for what the consumer does, and for what changes nothing.

        Take any witness that has this event later. Between now and then only other threads do something, and
        they only put and quiesce. Move the event here. *It keeps its outcome*, because it has that outcome
        now. *The rest keeps its own*: a take that finds its mail, or none, now, takes the same mail out of
        fewer. A drain, close, `len`, or `arm_wakeup` with the same outcome now and later means that nothing
        was put between. A batch made earlier is smaller by mails that no take from it returns: `allowed` has
        seen to it that those are in. And what changes nothing, a put that is refused or a second quiesce,
        would change nothing later either.
        """
        event = self._events[index]
        if event.operation == "create_batch" and not self._each_once:
            # Then `allowed` does not know which put of a mail the batch has to hold.
            return False
        if event.thread == self._consumer and event.operation not in OTHERS:
            return True
        return before == after

    def key(self, model: Model) -> Hashable:
        """State, streak, wake-ups and the batch: after the same events the same mails wait.

        Not the order of the puts: where a take can tell two mails of one urgency apart, `allowed` has left
        them only one order. Two others, neighbours in put order, can change places: the first take that gives
        one of them does not accept the other one.
        """
        if not self._each_once or not isinstance(model, MailboxModel):
            return model.key()
        batch = frozenset(mail for mail in model.waiting[: model.batch] if not mail.urgent)
        return model.state, model.streak, model.armed, model.lent, batch

    def _need(self, index: int, place: tuple[int, int]) -> None:
        needs = self._needs.setdefault(index, [0] * self._threads)
        thread, count = place
        # A thread's own events are in order anyway, and the mails of one put_all are too.
        if self._place[index][0] != thread:
            needs[thread] = max(needs[thread], count)

    def _order_of_puts(self, outs: list[Taken], put_by: dict[MailLike, int]) -> None:
        """A take that gave `a` and accepts `b`, of one urgency and not out yet: `a` was put before `b`.

        Otherwise `b`, which was there, would have been given. That holds for takes from a batch too: if `b`
        was put before `a` and `a` is in the batch, so is `b`.
        """
        # By what a take accepts and by urgency: for each thread the last of its puts whose mail such a take
        # gave.
        given: dict[tuple[bool, int, bool], dict[int, int]] = {}

        def constrain(mail: MailLike) -> None:
            index = put_by.get(mail)
            if index is None:
                return
            for (urgent, p, skip), puts in given.items():
                if urgent == mail.urgent and accepts(mail, p, skip):
                    for thread, count in puts.items():
                        self._need(index, (thread, count))

        for out in outs:
            constrain(out.mail)
            index = put_by.get(out.mail)
            if index is not None:
                puts = given.setdefault((out.mail.urgent, out.p, out.skip_deferrable), {})
                thread, count = self._place[index]
                puts[thread] = max(puts.get(thread, 0), count)
        came_out = {out.mail for out in outs}
        for index, event in enumerate(self._events):
            if event.operation in PUTS:
                for mail in mails_of(event):
                    if mail not in came_out and put_by.get(mail) == index:
                        constrain(mail)

    def _contents_of_batches(
        self, program: list[int], outs: list[Taken], put_by: dict[MailLike, int]
    ) -> None:
        """An ordinary mail that came out of a batch had been put when that batch was made."""
        taken = {out.event: out.mail for out in outs if out.of_batch}
        made: int | None = None
        for index in program:
            if self._events[index].operation == "create_batch":
                made = index
            mail = taken.get(index)
            if mail is not None and not mail.urgent and made is not None and mail in put_by:
                self._need(made, self._place[put_by[mail]])


class Taken(NamedTuple):
    """A mail that came out, and what the take that gave it accepts."""

    mail: Any
    event: int
    """The index of the event in the history."""
    p: int = MIN_PRIORITY
    skip_deferrable: bool = False
    of_batch: bool = False


def taken_by(index: int, event: Event) -> list[Taken]:
    """The mails that an event of the consumer took out, in their order."""
    result = event.result
    if result is None or isinstance(result, bool | Raised):
        return []
    match event.operation:
        case "try_take":
            return [Taken(result, index, *event.arguments)]
        case "take":
            return [Taken(result, index, event.arguments[0], event.arguments[2])]
        case "try_take_from_batch":
            return [Taken(result, index, of_batch=True)]
        case "drain" | "close":
            return [Taken(mail, index) for mail in result]
    return []


def mails_of(event: Event) -> tuple[MailLike, ...]:
    """The mails of a put."""
    mails = event.arguments[0]
    return tuple(mails) if event.operation == "put_all" else (mails,)


def accepted(event: Event) -> bool:
    """True if the put was."""
    return event.result is None or event.result is True


def put_events(events: Sequence[Event]) -> dict[MailLike, int]:
    """By mail the index of the put that was accepted; mails that were put more than once are not in it."""
    found = [
        (mail, index)
        for index, event in enumerate(events)
        if event.operation in PUTS and accepted(event)
        for mail in mails_of(event)
    ]
    times = Counter(mail for mail, _ in found)
    return {mail: index for mail, index in found if times[mail] == 1}
