"""Axioms that hold in every history of a mailbox or a hand-over, however long: checks in n log n.

Each axiom follows from the contract and looks at real time only: at what had ended before something else
began. A history that breaks none need not be linearizable; one that breaks one is not. The search for a
linearization is for short histories, these are for long ones. Values only: any thread.
"""

# Why axioms beside the search. A search decides, but a history of 100,000 operations has more states than
# it can visit; what takes n log n can only look for what is wrong in itself. The two overlap on purpose: on
# short histories a test compares them, so that neither is trusted alone.
#
# Why an axiom looks at real time only. One that used the order in which mails came out to tell in which
# they were put would call a history wrong whose threads overlapped, and a check that cries wolf is switched
# off.
#
# Why a thing that came out twice ends the look at the others. They ask when it was there, and any answer to
# that would give a second, wrong report of the first fault.

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pillarbox.testing.history import Event
from pillarbox.testing.history_view import HistoryView, In, Kind, Out, Wanted, of_handover, of_mailbox


class Violation(NamedTuple):
    """An axiom that does not hold, and the events that show it."""

    axiom: str
    what: str
    events: tuple[Event, ...]


def mailbox_violations(events: Sequence[Event], *, all_taken: bool = False) -> list[Violation]:
    """The axioms that a history of a mailbox breaks; one thread may take.

    all_taken: the history ends with an empty mailbox; needed to see a loss where there is no close.
    """
    return _violations(of_mailbox(events), all_taken)


def handover_violations(
    events: Sequence[Event], *, max_items: int | None = None, all_taken: bool = False
) -> list[Violation]:
    """The same for a hand-over; `max_items` is its bound, None not to check it."""
    view = of_handover(events)
    found = _violations(view, all_taken)
    if max_items is not None:
        found += _over_the_bound(view, max_items)
    return found


def _violations(view: HistoryView, all_taken: bool) -> list[Violation]:
    found = [*_multiplicity(view, all_taken), *_taken_before_put(view), *_after_the_end(view)]
    # The other axioms ask when a thing was there, which has no answer if it came out twice or from nowhere.
    ambiguous = {violation.axiom for violation in found} & {"duplicate", "from nowhere"}
    if ambiguous:
        return found
    # For the same reason they leave out what was put in more than once.
    once = _without_repeated(view)
    return [*found, *_order(once), *_false_empty(once)]


def _without_repeated(view: HistoryView) -> HistoryView:
    times = Counter(entry.thing for entry in view.ins)
    return replace(
        view,
        ins=[entry for entry in view.ins if times[entry.thing] == 1],
        outs=[out for out in view.outs if times[out.thing] == 1],
    )


def _multiplicity(view: HistoryView, all_taken: bool) -> Iterator[Violation]:
    """Nothing is lost, doubled or made up."""
    events = view.events
    accepted = Counter(entry.thing for entry in view.ins)
    came_out = Counter(out.thing for out in view.outs)
    for out in view.outs:
        if out.thing not in accepted:
            yield Violation(
                "from nowhere", f"{out.thing!r} came out, no put of it was accepted", (events[out.event],)
            )
        elif came_out[out.thing] > accepted[out.thing]:
            yield Violation(
                "duplicate", f"{out.thing!r} came out more often than it went in", (events[out.event],)
            )
    for entry in view.ins:
        if came_out[entry.thing] < accepted[entry.thing]:
            if view.closed:
                what = f"{entry.thing!r} was neither taken nor returned by close"
                yield Violation("close returns the rest", what, (events[entry.event],))
            elif all_taken:
                yield Violation("lost", f"{entry.thing!r} went in and never came out", (events[entry.event],))


def _taken_before_put(view: HistoryView) -> Iterator[Violation]:
    """Nothing comes out before its put has begun."""
    events = view.events
    begun: dict[Any, In] = {}
    for entry in view.ins:
        first = begun.setdefault(entry.thing, entry)
        if events[entry.event].start < events[first.event].start:
            begun[entry.thing] = entry
    for out in view.outs:
        source = begun.get(out.thing)
        if source is not None and events[out.event].end < events[source.event].start:
            what = f"{out.thing!r} came out before its put began"
            yield Violation("taken before put", what, (events[out.event], events[source.event]))


def _after_the_end(view: HistoryView) -> Iterator[Violation]:
    """No put succeeds that begins after the input has ended; none is refused before."""
    events = view.events
    ended = min((events[index].end for index in view.ends), default=math.inf)
    begun = min((events[index].start for index in view.ends), default=math.inf)
    for index in sorted({entry.event for entry in view.ins}):
        if events[index].start > ended:
            yield Violation(
                "put after the end", "a put that began after the end was accepted", (events[index],)
            )
    for index in view.refused:
        if events[index].end < begun:
            yield Violation("refused while open", "a put was refused before anything ended", (events[index],))


def _order(view: HistoryView) -> Iterator[Violation]:
    """First in, first out, among what a take accepts and of one urgency, where real time says what was first.

    For each kind of thing a heap of what is in by the end of its put; the next one out must not have been put
    after the end of one that stays.
    """
    events = view.events
    source = {entry.thing: entry for entry in view.ins}
    gone: set[Any] = set()
    heaps: dict[Kind, list[tuple[int, int, In]]] = defaultdict(list)
    for number, entry in enumerate(view.ins):
        heapq.heappush(heaps[entry.kind], (events[entry.event].end, number, entry))
    for out in view.outs:
        entry = source[out.thing]
        gone.add(out.thing)
        for kind, heap in heaps.items():
            if kind.urgent != entry.kind.urgent or not out.wanted.accepts(kind):
                continue
            while heap and heap[0][2].thing in gone:
                heapq.heappop(heap)
            if heap and heap[0][0] < events[entry.event].start:
                earlier = heap[0][2]
                what = f"{out.thing!r} overtook {earlier.thing!r}"
                shown = (events[earlier.event], events[entry.event], events[out.event])
                yield Violation("first in, first out", what, shown)
    yield from _order_within_puts(view, source)


def _order_within_puts(view: HistoryView, source: dict[Any, In]) -> Iterator[Violation]:
    """The same among the mails of one put_all, where only an inversion is looked at closely."""
    groups: dict[int, list[tuple[In, Out]]] = defaultdict(list)
    for out in view.outs:
        groups[source[out.thing].event].append((source[out.thing], out))
    for index, group in groups.items():
        highest: dict[Kind, In] = {}
        for number, (entry, _) in enumerate(group):
            for kind, other in highest.items():
                if kind.urgent == entry.kind.urgent and other.place > entry.place:
                    # `other` came out first: was it allowed to pass `entry`?
                    passing = [
                        out
                        for before, out in group[:number]
                        if before.place > entry.place
                        and before.kind.urgent == entry.kind.urgent
                        and out.wanted.accepts(entry.kind)
                    ]
                    if passing:
                        what = f"{passing[0].thing!r} overtook {entry.thing!r} of the same put"
                        shown = (view.events[index], view.events[passing[0].event])
                        yield Violation("first in, first out", what, shown)
                        break
            best = highest.get(entry.kind)
            if best is None or best.place < entry.place:
                highest[entry.kind] = entry


def _false_empty(view: HistoryView) -> Iterator[Violation]:
    """Nothing is said to be empty while something waited through the whole call.

    The events of the consumer in their order, and beside them the puts in the order of their ends: what had
    been put when an event began and comes out only later was there all the time. A batch has what was put
    when it was made.
    """
    events = view.events
    puts = sorted(view.ins, key=lambda entry: events[entry.event].end)
    outs: dict[int, list[Out]] = defaultdict(list)
    for out in view.outs:
        outs[out.event].append(out)
    there: dict[Kind, dict[Any, In]] = defaultdict(dict)
    in_batch: dict[Any, In] = {}
    since_batch: dict[Any, In] = {}
    gone: set[Any] = set()
    arrived = 0
    for index in view.consumer:
        while arrived < len(puts) and events[puts[arrived].event].end < events[index].start:
            entry = puts[arrived]
            arrived += 1
            if entry.thing not in gone:
                there[entry.kind][entry.thing] = since_batch[entry.thing] = entry
        wanted = view.empty.get(index)
        if wanted is not None:
            for entry in _waiting(there, wanted, in_batch):
                what = f"{entry.thing!r} waited while nothing was said to be there"
                yield Violation("false empty", what, (events[entry.event], events[index]))
        for out in outs[index]:
            gone.add(out.thing)
            in_batch.pop(out.thing, None)
            since_batch.pop(out.thing, None)
            for things in there.values():
                things.pop(out.thing, None)
        if events[index].operation == "create_batch":
            in_batch.update(since_batch)
            since_batch.clear()


def _waiting(there: dict[Kind, dict[Any, In]], wanted: Wanted, in_batch: dict[Any, In]) -> list[In]:
    """One thing that waits and is wanted, in a list, if there is one."""
    if wanted.of_batch:
        lists = [things for kind, things in there.items() if kind.urgent] + [in_batch]
    else:
        lists = [things for kind, things in there.items() if wanted.accepts(kind)]
    return [next(iter(things.values())) for things in lists if things][:1]


def _over_the_bound(view: HistoryView, max_items: int) -> Iterator[Violation]:
    """Never more things than the bound are in: those whose put has ended and whose take has not begun."""
    events = view.events
    moments = [(events[entry.event].end, 1, entry.event) for entry in view.ins]
    moments += [(events[out.event].start, -1, out.event) for out in view.outs]
    inside = 0
    for _, change, index in sorted(moments):
        inside += change
        if change > 0 and inside > max_items:
            yield Violation(
                "over the bound", f"{inside} items were in, the bound is {max_items}", (events[index],)
            )
