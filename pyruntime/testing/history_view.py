"""A history seen as things that go in and come out: what mailboxes and hand-overs have in common.

The axioms are stated on it. Values only: any thread.
"""

# Why a view between histories and axioms: mailboxes and hand-overs have different operations and the same
# promises. Axioms that were written for each would be two versions of every argument.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pillarbox.testing.history import Event
from pillarbox.testing.models.mailbox import CLOSED_ERROR, MIN_PRIORITY, MailLike
from pillarbox.testing.models.model import Raised

PUTS = frozenset({"put", "put_all", "try_put"})


class Kind(NamedTuple):
    """The properties that a take may ask of a thing: all things of one kind are treated alike."""

    urgent: bool = False
    priority: int = 0
    deferrable: bool = False


class Wanted(NamedTuple):
    """The things that a take accepts."""

    p: int = MIN_PRIORITY
    skip_deferrable: bool = False
    of_batch: bool = False

    def accepts(self, kind: Kind) -> bool:
        """True if the take accepts things of this kind; of a batch only what is in it."""
        return kind.priority >= self.p and not (self.skip_deferrable and kind.deferrable)


class In(NamedTuple):
    """A thing that was accepted."""

    thing: Any
    kind: Kind
    event: int
    """The index of the event in the history."""
    place: int
    """Among the things of that event."""


class Out(NamedTuple):
    """A thing that came out."""

    thing: Any
    wanted: Wanted
    event: int
    by_close: bool


@dataclass
class HistoryView:
    """A history, sorted by what happened. All indices are those of the events."""

    events: Sequence[Event]
    ins: list[In] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    """Puts that were refused because the input had ended."""
    ends: list[int] = field(default_factory=list)
    """The events that ended the input: quiesce, close, finish, fail."""
    consumer: list[int] = field(default_factory=list)
    """The events of the one thread that takes, in its order."""
    outs: list[Out] = field(default_factory=list)
    """In the order in which the consumer got them."""
    empty: dict[int, Wanted] = field(default_factory=dict)
    """Events of the consumer that said that nothing of this was there."""
    closed: bool = False
    """True if the history has a close."""


def mails_of(event: Event) -> tuple[MailLike, ...]:
    """The mails of a put."""
    mails = event.arguments[0]
    return tuple(mails) if event.operation == "put_all" else (mails,)


def accepted(event: Event) -> bool:
    """True if the put was."""
    return event.result is None or event.result is True


def of_mailbox(events: Sequence[Event]) -> HistoryView:
    """The view of mails; ValueError if more than one thread takes."""
    view = HistoryView(events)
    for index, event in enumerate(events):
        if event.operation in PUTS:
            if accepted(event):
                kinds = (
                    (mail, Kind(mail.urgent, mail.priority, mail.deferrable)) for mail in mails_of(event)
                )
                view.ins += [In(mail, kind, index, place) for place, (mail, kind) in enumerate(kinds)]
            elif event.operation != "put_all" or mails_of(event):
                view.refused.append(index)
        elif event.operation == "quiesce":
            view.ends.append(index)
        else:
            view.consumer.append(index)
    for index in _of_one_thread(view):
        event = events[index]
        closes = event.operation == "close"
        if closes:
            view.ends.append(index)
            view.closed = True
        wanted = _wanted(event)
        if event.result is not None and not isinstance(event.result, bool | Raised):
            if event.operation in ("drain", "close"):
                view.outs += [Out(mail, Wanted(), index, closes) for mail in event.result]
            elif wanted is not None:
                view.outs.append(Out(event.result, wanted, index, False))
        if wanted is not None and _says_empty(event):
            view.empty[index] = wanted
    return view


def of_handover(events: Sequence[Event]) -> HistoryView:
    """The view of items; ValueError if more than one thread takes."""
    view = HistoryView(events)
    for index, event in enumerate(events):
        match event.operation:
            case "put" | "try_put":
                if event.result is True:
                    view.ins.append(In(event.arguments[0], Kind(), index, 0))
                elif isinstance(event.result, Raised):
                    view.refused.append(index)
            case "finish" | "fail":
                if event.result is True:
                    view.ends.append(index)
            case "take" | "try_take" | "take_all" | "close":
                view.consumer.append(index)
    for index in _of_one_thread(view):
        event = events[index]
        closes = event.operation == "close"
        if closes:
            view.ends.append(index)
            view.closed = True
        if event.operation in ("take_all", "close") and not isinstance(event.result, Raised):
            view.outs += [Out(item, Wanted(), index, closes) for item in event.result]
        elif event.result is not None and not isinstance(event.result, Raised):
            view.outs.append(Out(event.result, Wanted(), index, False))
        if not closes and (event.result in (None, []) or isinstance(event.result, Raised)):
            view.empty[index] = Wanted()
    return view


def _wanted(event: Event) -> Wanted | None:
    """The mails that an event of the consumer asks for; None if it takes nothing and tells nothing."""
    match event.operation:
        case "try_take":
            return Wanted(event.arguments[0], event.arguments[1])
        case "take":
            return Wanted(event.arguments[0], event.arguments[2])
        case "try_take_from_batch":
            return Wanted(of_batch=True)
        case "has_mail" | "create_batch" | "drain":
            return Wanted()
    return None


def _says_empty(event: Event) -> bool:
    """Return True if the event says that nothing of what it wants was there."""
    if event.operation == "take" and event.result == CLOSED_ERROR:
        return True
    # By identity: what stands for a mail in a test may be equal to anything.
    return event.result == [] if event.operation == "drain" else event.result is None or event.result is False


def _of_one_thread(view: HistoryView) -> list[int]:
    threads = {view.events[index].thread for index in view.consumer}
    if len(threads) > 1:
        raise ValueError(f"the axioms are for one thread that takes, these do: {', '.join(sorted(threads))}")
    view.consumer.sort(key=lambda index: (view.events[index].start, view.events[index].end))
    return view.consumer
