"""A history seen as things that go in and come out: what mailboxes and hand-overs have in common.

The axioms are stated on it. Values only: any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pillarbox.testing.guide import PUTS, accepted, mails_of, outs_of
from pillarbox.testing.history import Event
from pillarbox.testing.models import Raised
from pillarbox.testing.models.mailbox import CLOSED_ERROR, LEAST


class Kind(NamedTuple):
    """What a take may ask of a thing: all things of one kind are treated alike."""

    urgent: bool = False
    priority: int = 0
    deferrable: bool = False


class Wanted(NamedTuple):
    """What a take accepts."""

    p: int = LEAST
    skip_deferrable: bool = False
    of_batch: bool = False

    def accepts(self, kind: Kind) -> bool:
        """Whether the take accepts things of this kind; of a batch only what is in it."""
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
class Passage:
    """A history, sorted by what happened. All indices are those of the events."""

    events: Sequence[Event]
    ins: list[In] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    """Puts that were refused because the input had ended."""
    ends: list[int] = field(default_factory=list)
    """What ended the input: quiesce, close, finish, fail."""
    consumer: list[int] = field(default_factory=list)
    """The events of the one thread that takes, in its order."""
    outs: list[Out] = field(default_factory=list)
    """In the order in which the consumer got them."""
    empty: dict[int, Wanted] = field(default_factory=dict)
    """Events of the consumer that said that nothing of this was there."""
    closed: bool = False
    """Whether the history has a close."""


def of_mailbox(events: Sequence[Event]) -> Passage:
    """The passage of mails; ValueError if more than one thread takes."""
    passage = Passage(events)
    for index, event in enumerate(events):
        if event.operation in PUTS:
            if accepted(event):
                kinds = (
                    (mail, Kind(mail.urgent, mail.priority, mail.deferrable)) for mail in mails_of(event)
                )
                passage.ins += [In(mail, kind, index, place) for place, (mail, kind) in enumerate(kinds)]
            elif event.operation != "put_all" or mails_of(event):
                passage.refused.append(index)
        elif event.operation == "quiesce":
            passage.ends.append(index)
        else:
            passage.consumer.append(index)
    for index in _of_one_thread(passage):
        event = events[index]
        closes = event.operation == "close"
        if closes:
            passage.ends.append(index)
            passage.closed = True
        for out in outs_of(index, event):
            wanted = Wanted(out.p, out.skip_deferrable, out.of_batch)
            passage.outs.append(Out(out.mail, wanted, index, closes))
        said = _mailbox_said_empty(event)
        if said is not None:
            passage.empty[index] = said
    return passage


def of_handover(events: Sequence[Event]) -> Passage:
    """The passage of items; ValueError if more than one thread takes."""
    passage = Passage(events)
    for index, event in enumerate(events):
        match event.operation:
            case "put" | "try_put":
                if event.result is True:
                    passage.ins.append(In(event.arguments[0], Kind(), index, 0))
                elif isinstance(event.result, Raised):
                    passage.refused.append(index)
            case "finish" | "fail":
                if event.result is True:
                    passage.ends.append(index)
            case "take" | "try_take" | "take_all" | "close":
                passage.consumer.append(index)
    for index in _of_one_thread(passage):
        event = events[index]
        closes = event.operation == "close"
        if closes:
            passage.ends.append(index)
            passage.closed = True
        if event.operation in ("take_all", "close") and not isinstance(event.result, Raised):
            passage.outs += [Out(item, Wanted(), index, closes) for item in event.result]
        elif event.result is not None and not isinstance(event.result, Raised):
            passage.outs.append(Out(event.result, Wanted(), index, False))
        if not closes and (event.result in (None, []) or isinstance(event.result, Raised)):
            passage.empty[index] = Wanted()
    return passage


def _mailbox_said_empty(event: Event) -> Wanted | None:
    """What the event said there was none of; None if it said nothing of the kind."""
    refused = event.result == CLOSED_ERROR
    match event.operation:
        case "try_take" if event.result is None:
            return Wanted(event.arguments[0], event.arguments[1])
        case "take" if event.result is None or refused:
            return Wanted(event.arguments[0], event.arguments[2])
        case "try_take_from_batch" if event.result is None:
            return Wanted(of_batch=True)
        case "has_mail" | "create_batch" if event.result is False:
            return Wanted()
        case "drain" if event.result == []:
            return Wanted()
    return None


def _of_one_thread(passage: Passage) -> list[int]:
    threads = {passage.events[index].thread for index in passage.consumer}
    if len(threads) > 1:
        raise ValueError(f"the axioms are for one thread that takes, these do: {', '.join(sorted(threads))}")
    passage.consumer.sort(key=lambda index: (passage.events[index].start, passage.events[index].end))
    return passage.consumer
