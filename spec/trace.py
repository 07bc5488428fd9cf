"""Tells whether a recorded run of a mailbox was a behaviour of the specification.

A traced build records what each thread asked and was told; `spec/include/traced/pillarbox_trace.h`
says how a line looks. `pillarbox.testing` searches an order in which all that could have taken place, one by
one. TLC checks that order against `Mailbox.tla`, and so has the last word on a run that is accepted. That
there is no order is what the search says; TLC then shows that none goes on from where the search got stuck.

    python -m spec.trace FILE [BURST]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.testing.linearizability import Event, Verdict, linearize, mailbox_hints
from pillarbox.testing.models import MAILBOX_CLOSED, MailboxModel

from . import tlc

URGENT, DEFERRABLE = 1, 2
MODULES = ("Lanes", "Mailbox", "MailboxTrace")
CONFIG = """\
SPECIFICATION TraceSpec
CHECK_DEADLOCK TRUE
CONSTANTS
    Mails <- TraceMails
    Urgent <- TraceUrgent
    High <- TraceHigh
    Deferrable <- TraceDeferrable
    Burst = {burst}
    Choosy = TRUE
    Again = FALSE
    Mutant = "none"
"""


class TracedMail(NamedTuple):
    """A mail of a trace: the number that its put gave it, and its kind."""

    number: int
    priority: int
    urgent: bool
    deferrable: bool


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on a trace: of the search, and of TLC."""

    search: Verdict
    outcome: tlc.Outcome

    @property
    def accepted(self) -> bool | None:
        """True if the trace is a behaviour of the specification; None if the search was given up."""
        if self.outcome.code == tlc.PASSED:
            return True
        return None if self.search.linearizable is None else False


def read(text: str) -> list[Event]:
    """The events of a trace of one mailbox. ValueError for lines of several mailboxes, or other lines."""
    lines = [line.split() for line in text.splitlines()]
    mailboxes = {words[0] for words in lines}
    if len(mailboxes) > 1:
        raise ValueError(f"a trace must be of one mailbox, not of {len(mailboxes)}")
    mails = {
        mail.number: mail for words in lines if words[4] == "put" for mail in map(traced_mail, words[6:])
    }
    events = [event(words, mails) for words in lines]
    return sorted(events, key=lambda event: event.start)


def traced_mail(word: str) -> TracedMail:
    """Read a put, written as number/priority/flags."""
    number, priority, flags = (int(part) for part in word.split("/"))
    return TracedMail(number, priority, bool(flags & URGENT), bool(flags & DEFERRABLE))


def event(words: Sequence[str], mails: dict[int, TracedMail]) -> Event:
    """One line in the words of the reference model."""
    _, thread, start, end, operation, result, *rest = words
    arguments: tuple[Any, ...] = ()
    outcome: Any = None
    match operation:
        case "put":
            operation, arguments = "put_all", (tuple(map(traced_mail, rest)),)
            outcome = None if result == "OPEN" else MAILBOX_CLOSED
        case "take":
            arguments = (int(rest[0]), 0, rest[1] != "0")
            outcome = mails[int(result)] if result.isdigit() else None if result == "OPEN" else MAILBOX_CLOSED
        case "take_from_batch":
            operation, outcome = "try_take_from_batch", mails[int(result)] if result.isdigit() else None
        case "create_batch":
            outcome = result == "true"
        case "drain" | "close":
            outcome = [mails[int(number)] for number in rest]
        case "quiesce":
            pass
        case _:
            raise ValueError(f"a trace has no operation {operation!r}")
    return Event(thread, operation, arguments, outcome, int(start), int(end))


def search(events: Sequence[Event], urgent_burst: int) -> Verdict:
    """Searches an order of these events of a mailbox made with `urgent_burst`."""
    return linearize(events, MailboxModel(urgent_burst=urgent_burst), hints=mailbox_hints(events))


def check(events: Sequence[Event], urgent_burst: int) -> Verdicts:
    """The same, and lets TLC check the order."""
    verdict = search(events, urgent_burst)
    data = data_module(events, verdict.order)
    return Verdicts(verdict, run_on("MailboxTrace", MODULES, data, CONFIG.format(burst=urgent_burst)))


def run_on(module: str, modules: Sequence[str], data: str, config: str) -> tlc.Outcome:
    """Runs TLC on one of `modules` that reads what was recorded, `data`, from a module of its own."""
    with tempfile.TemporaryDirectory(prefix="pillarbox-trace-") as scratch:
        folder = Path(scratch)
        for each in modules:
            shutil.copy(tlc.SPEC / f"{each}.tla", folder)
        (folder / f"{module}Data.tla").write_text(data)
        return tlc.run(module, config, coverage=False, folder=folder, timeout=600.0)


def data_module(events: Sequence[Event], order: Sequence[int]) -> str:
    """The module that TLC reads: all mails, each thread's operations, and whose turn it was."""
    threads = sorted({event.thread for event in events})
    mails = [mail for event in events if event.operation == "put_all" for mail in event.arguments[0]]
    programs = [tuple_of(record(event) for event in events if event.thread == thread) for thread in threads]
    turns = [str(threads.index(events[index].thread) + 1) for index in order]
    return "\n".join(
        [
            "---- MODULE MailboxTraceData ----",
            "EXTENDS Integers, Sequences",
            f"TraceMails == {set_of(mails)}",
            f"TraceUrgent == {set_of(mail for mail in mails if mail.urgent)}",
            f"TraceHigh == {set_of(mail for mail in mails if mail.priority > 0)}",
            f"TraceDeferrable == {set_of(mail for mail in mails if mail.deferrable)}",
            f"Programs == {tuple_of(programs)}",
            f"Turns == {tuple_of(turns)}",
            "====",
        ]
    )


def record(event: Event) -> str:
    """An event in TLA+, with the answer in the words of Mailbox.tla."""
    put: Sequence[TracedMail] = ()
    out: Sequence[TracedMail] = ()
    operation, p, skip = event.operation, -1, False
    match operation:
        case "put_all":
            operation, put = "put", event.arguments[0]
            answer = "OPEN" if event.result is None else "refused"
        case "take" | "try_take_from_batch":
            if operation == "take":
                p, _, skip = event.arguments
            else:
                operation = "take_from_batch"
            if isinstance(event.result, TracedMail):
                answer, out = "mail", [event.result]
            else:
                answer = "none" if event.result is None else "closed"
        case "create_batch":
            answer = "yes" if event.result else "no"
        case "drain" | "close":
            answer, out = "mails", event.result
        case _:
            answer = ""
    return (
        f'[op |-> "{operation}", mails |-> {numbers(put)}, p |-> {p}, skip |-> {str(skip).upper()}, '
        f'answer |-> "{answer}", out |-> {numbers(out)}, first |-> {event.start}, last |-> {event.end}]'
    )


def numbers(mails: Sequence[TracedMail]) -> str:
    """The numbers of these mails as a sequence."""
    return tuple_of(str(mail.number) for mail in mails)


def tuple_of(parts: Any) -> str:
    """A sequence of TLA+."""
    return "<<" + ", ".join(parts) + ">>"


def set_of(mails: Any) -> str:
    """The set of the numbers of these mails; as an interval where it is one, which TLC reads faster."""
    found = sorted(mail.number for mail in mails)
    if found and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]}..{found[-1]}"
    return "{" + ", ".join(map(str, found)) + "}"


def main() -> int:
    """Checks the trace of a file."""
    if len(sys.argv) not in (2, 3):
        print("python -m spec.trace FILE [BURST]", file=sys.stderr)
        return 2
    events = read(Path(sys.argv[1]).read_text())
    verdicts = check(events, int(sys.argv[2]) if len(sys.argv) == 3 else 64)
    print(f"{len(events)} operations: {'accepted' if verdicts.accepted else 'rejected'}", end=", ")
    print(f"{verdicts.outcome.distinct} states, {verdicts.outcome.seconds:.1f} s of TLC")
    if not verdicts.accepted:
        print(verdicts.search.explain(events))
    return 0 if verdicts.accepted else 1


if __name__ == "__main__":
    sys.exit(main())
