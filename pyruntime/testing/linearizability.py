"""The search for an order in which a model could have done one by one what threads did at the same time.

The search of J. M. Wing and C. Gong ("Testing and Verifying Concurrent Objects", Journal of Parallel and
Distributed Computing 17, 1993): choose an operation that no other one precedes, do it on the model, go on; go
back where the outcomes differ. With the cache of G. Lowe ("Testing for Linearizability", Concurrency and
Computation: Practice and Experience 29, 2017): no state is searched twice that has done the same operations.
What is done is here one number for each thread, for a thread does one thing after the other.

Values only: any thread.
"""

# Why a search of our own. Porcupine (Go) and Knossos (Clojure) would have to be installed beside Python and
# get each model in their own language; a model here is the same value that the suites compare with.
#
# Why models are values that never change. The search goes back as often as it goes on: with a model that is
# changed in place each step back would need its inverse, and a wrong inverse is a wrong verdict. A step of
# such a model costs more; the cache and the hints see to it that there are few.
#
# Why a witness is checked anew by `follows`, which does not search: an error in the cache may give a
# verdict without a reason, and then at least not one that says a history is right.

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pillarbox.testing.history import Event
from pillarbox.testing.models.model import Model

MAX_STATES = 1_000_000
# States to visit for each event, where only the place of a mistake is sought.
UNHINTED_STATES_PER_EVENT = 3


class SearchHints(Protocol):
    """Hints of somebody who knows the contract to the search in one history. They must not lie.

    Indices are those of the events; `done` is, for each thread in the order of `threads`, how many of its
    events have been placed.
    """

    threads: list[str]

    def rank(self, index: int) -> Any:
        """Candidates are tried in the order of these."""

    def allowed(self, index: int, done: Sequence[int]) -> bool:
        """False if no witness has this event next."""

    def settled(self, index: int, before: Model, after: Model) -> bool:
        """True if there is a witness with this event next if there is one at all."""

    def key(self, model: Model) -> Hashable:
        """Equal for two models after the same events if the rest can follow both or neither."""


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
    events: Sequence[Event], model: Model, *, hints: SearchHints | None = None, limit: int = MAX_STATES
) -> Verdict:
    """Look for a witness: an order of all events that the model can do with these outcomes, one by one.

    events: each thread's must follow one another; ValueError if two of them overlap. model: the subject's
    state before the first. limit: of the states to visit; the verdict is None beyond.
    """
    verdict = _Search(events, model, hints, limit).run()
    if hints is None or verdict.linearizable:
        return verdict
    # Hints let the search end where a mistake became certain, which may be long before it shows. Without
    # their refusals the search gets nearer to it; should it get through, they have lied.
    unhinted = _Search(events, model, _RankOnly(hints), UNHINTED_STATES_PER_EVENT * len(events)).run()
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


class _RankOnly:
    """Hints that only say what to try first."""

    def __init__(self, hints: SearchHints) -> None:
        self.threads = hints.threads
        self.rank = hints.rank

    def allowed(self, index: int, done: Sequence[int]) -> bool:
        return True

    def settled(self, index: int, before: Model, after: Model) -> bool:
        return False

    def key(self, model: Model) -> Hashable:
        return model.key()


class _Search:
    def __init__(self, events: Sequence[Event], model: Model, hints: SearchHints | None, limit: int) -> None:
        self.events = events
        self.model = model
        self.hints = hints
        self.limit = limit
        self.threads = hints.threads if hints else sorted({event.thread for event in events})
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
        if hints is None:
            found.sort(key=lambda index: self.events[index].end)
        else:
            found = sorted((i for i in found if hints.allowed(i, done)), key=hints.rank)
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
