"""The reference model of the async operator: tells whether what it did is a behaviour of `Operator.tla`.

Written from the specification and without the operator. One thread takes all of its steps, so a record is
their order already, and there is nothing to search: each step is one that the model can make, or it is
refused. For one thread.
"""

# Why a step is judged at once, without a search as for the kernel's subjects. One thread takes all of an
# operator's steps, so the record is their order; what a search would have to guess is written down.
#
# Why times have a slack. The record has milliseconds, and a loop that others hold up is late; the
# specification has no times at all. What may never be early is held to two milliseconds, the error of
# rounding.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pillarbox.testing.operator_trace import SavedMark, SavedRow, TraceStep

TOLERANCE_MS = 2
"""Milliseconds by which a timer may be early, times being rounded."""


class Refused(Exception):
    """A step that the operator must not make."""


class TracePlan(NamedTuple):
    """The options with which an operator was made. Times are milliseconds; 0 stands for no limit.

    limit: calls at a time. attempts: of a row, but for those that its errors ask for. slack: by which a
    time-out may be late, and what a snapshot says of times be off. parts: whether rows are called in batches,
    of which a part may be called again at once.
    """

    ordered: int
    window: int
    limit: int
    attempts: int
    timeout: int
    slack: int
    parts: int


NO_PLAN = TracePlan(0, 0, 0, 0, 0, 0, 0)
"""That of no life."""


@dataclass
class Row:
    """A row that is held. `began` is when its time began to count, None before; `due` when its pause ends.

    In a life that took it over both may be before the life.
    """

    id: int
    label: int
    state: str = "waiting"
    attempts: int = 0
    repeats: int = 0
    began: int | None = None
    due: int = 0


@dataclass
class HeldMark:
    """Watermarks and statuses that share an entry."""

    elements: list[tuple[str, str]]


class TakenSnapshot(NamedTuple):
    """The entries of a snapshot, and how many rows had come in and gone out by then."""

    ordered: int
    entries: tuple[SavedRow | SavedMark, ...]
    admitted: int
    gone: int


@dataclass
class OperatorModel:
    """The operator as its specification has it, over several lives.

    phase: "none", "running", "ended", "finished" or "closed". inputs: the rows in the order in which they
    come, in every life. admitted, gone: how many have come in, and have been emitted, in what no restart took
    back.
    """

    plan: TracePlan = NO_PLAN
    phase: str = "none"
    queue: list[Row | HeldMark] = field(default_factory=list)
    rest: list[SavedRow | SavedMark] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    admitted: int = 0
    gone: int = 0
    saved: list[TakenSnapshot] = field(default_factory=list)

    def follow(self, steps: Sequence[TraceStep]) -> None:
        """Make the steps. Raises Refused with the first that cannot be."""
        for number, step in enumerate(steps):
            try:
                getattr(self, f"on_{step.name}")(step.at, *step.words)
            except Refused as refused:
                raise Refused(f"step {number}, {step.name} {step.words} at {step.at} ms: {refused}") from None

    # -- lives ---------------------------------------------------------------------------------

    # spec: Operator!Create
    def on_create(self, at: int, *plan: int) -> None:
        """A life begins, with nothing; the one before has ended, or was killed."""
        self.plan = TracePlan(*plan)
        self.phase = "running"
        self.queue, self.rest, self.admitted, self.gone = [], [], 0, 0

    # spec: Operator!Restore
    def on_restore(self, at: int, gone: int, entries: tuple[SavedRow | SavedMark, ...]) -> None:
        """Admit what a snapshot has before anything else."""
        require(self.phase == "running" and not self.admitted and not self.queue, "it has begun")
        for saved in self.saved:
            agrees = saved.ordered == self.plan.ordered and saved.gone == gone
            if agrees and unnumbered(saved.entries) == unnumbered(entries):
                self.rest = list(entries)
                self.admitted, self.gone = saved.admitted, saved.gone
                return
        raise Refused("no snapshot has this")

    # spec: Operator!EndInput
    def on_end_input(self, at: int) -> None:
        """No row comes any more."""
        require(self.phase == "running", f"it is {self.phase}")
        self.phase = "ended"

    # spec: Operator!Finish
    def on_finish(self, at: int) -> None:
        """Everything has come out."""
        require(self.phase == "ended", f"it is {self.phase}")
        require(not self.queue and not self.rest, "something has not come out")
        self.phase = "finished"

    # spec: Operator!Close
    def on_close(self, at: int) -> None:
        """Nothing comes out any more."""
        require(self.phase not in ("none", "closed"), f"it is {self.phase}")
        self.phase = "closed"

    # -- rows come in --------------------------------------------------------------------------

    # spec: Operator!Admit
    def on_admit(self, at: int, number: int, label: int) -> None:
        """A row comes in: in each life the same one at its place."""
        require(self.phase == "running", f"it is {self.phase}")
        require(not self.rest, "what is to be restored comes first")
        require(len(self.queue) < self.plan.window, "the window is full")
        if self.admitted < len(self.inputs):
            require(self.inputs[self.admitted] == label, "another row came here before")
        else:
            self.inputs.append(label)
        self.queue.append(Row(number, label))
        self.admitted += 1

    # spec: Operator!PutMark
    def on_mark(self, at: int, kind: str, value: str) -> None:
        """A watermark or status comes in. It takes an entry, or takes part in that of the one just before."""
        require(self.phase == "running", f"it is {self.phase}")
        require(not self.rest, "what is to be restored comes first")
        last = self.queue[-1] if self.queue else None
        if isinstance(last, HeldMark):
            last.elements = [each for each in last.elements if each[0] != kind] + [(kind, value)]
            return
        require(len(self.queue) < self.plan.window, "the window is full")
        self.queue.append(HeldMark([(kind, value)]))

    # spec: Operator!Readmit
    def on_readmit(self, at: int) -> None:
        """The first of what is to be restored comes in. What it has spent counts, not the time between."""
        require(self.is_live and bool(self.rest), "nothing is to be restored")
        require(len(self.queue) < self.plan.window, "the window is full")
        entry = self.rest.pop(0)
        if isinstance(entry, SavedMark):
            self.queue.append(HeldMark(list(entry.elements)))
            return
        row = Row(entry.id, entry.label, attempts=entry.attempts, repeats=entry.repeats)
        if entry.kind != "open":
            row.state = "done" if entry.kind == "done" else "decided"
        elif entry.pause >= 0:
            row.state, row.due = "pausing", at + entry.pause
        if entry.attempts or entry.spent:
            row.began = at - entry.spent
        self.queue.append(row)

    # -- calls ---------------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """True while calls are made and results emitted."""
        return self.phase in ("running", "ended")

    def row(self, number: int, *states: str) -> Row:
        """The row of this number, which is in one of the states."""
        require(self.is_live, f"it is {self.phase}")
        for each in self.queue:
            if isinstance(each, Row) and each.id == number:
                require(each.state in states, f"the row is {each.state}")
                return each
        raise Refused("there is no such row")

    def require_in_time(self, row: Row, at: int) -> None:
        """The time of `row` is not over for longer than the slack."""
        limit = self.plan.timeout + self.plan.slack
        over = self.plan.timeout and row.began is not None and at > row.began + limit
        require(not over, "its time is over")

    # spec: Operator!Start
    def on_start(self, at: int, number: int, attempt: int) -> None:
        """An attempt begins."""
        row = self.row(number, "waiting", "pausing", *(["failed"] if self.plan.parts else []))
        require(attempt == row.attempts + 1, f"it has had {row.attempts} attempts")
        charged = attempt - row.repeats
        require(not self.plan.attempts or charged <= self.plan.attempts, "it has had all its attempts")
        require(at + TOLERANCE_MS >= row.due, "its pause is not over")
        self.require_in_time(row, at)
        running = sum(isinstance(each, Row) and each.state == "running" for each in self.queue)
        require(not self.plan.limit or running < self.plan.limit, "too many calls run")
        row.state, row.attempts = "running", attempt
        if row.began is None:
            row.began = at

    # spec: Operator!Answer
    def on_answer(self, at: int, number: int) -> None:
        """The attempt has given the row's result."""
        row = self.row(number, "running")
        self.require_in_time(row, at)
        row.state = "decided"

    # spec: Operator!Fail
    def on_fail(self, at: int, number: int) -> None:
        """The attempt has given an error."""
        self.row(number, "running").state = "failed"

    # spec: Operator!Again
    def on_again(self, at: int, number: int, pause: int) -> None:
        """Another attempt follows after a pause."""
        row = self.row(number, "failed")
        row.state, row.due = "pausing", at + pause

    # spec: Operator!AskAgain
    def on_ask_again(self, at: int, number: int, most: int) -> None:
        """Another attempt follows at once, as the error asks for, which may do so `most` times."""
        row = self.row(number, "failed")
        require(row.repeats < most, f"it was called again {row.repeats} times")
        row.state, row.due, row.repeats = "pausing", at, row.repeats + 1

    # spec: Operator!TimeOut
    def on_time_out(self, at: int, number: int) -> None:
        """The time of the row is over, whatever it does."""
        row = self.row(number, "waiting", "running", "pausing", "failed")
        began = row.began
        require(self.plan.timeout > 0 and began is not None, "it has no limit of time, or has not begun")
        assert began is not None
        require(at + TOLERANCE_MS >= began + self.plan.timeout, "its time is not over")
        self.require_in_time(row, at)
        row.state = "failed"

    # spec: Operator!GiveUp
    def on_give_up(self, at: int, number: int) -> None:
        """The row has failed for good."""
        self.row(number, "waiting", "joined", "running", "failed").state = "decided"

    # spec: Operator!Join
    def on_join(self, at: int, number: int) -> None:
        """The row gets the result of another one's call."""
        self.row(number, "waiting").state = "joined"

    # spec: Operator!Find
    def on_find(self, at: int, number: int) -> None:
        """The row has the result of a call that is not its own."""
        self.row(number, "waiting", "joined", "pausing", "decided", "withdrawn").state = "decided"

    # spec: Operator!Withdraw
    def on_withdraw(self, at: int, number: int) -> None:
        """The row is not called, or not again."""
        self.row(number, "waiting", "running", "pausing", "failed").state = "withdrawn"

    # spec: Operator!Complete
    def on_complete(self, at: int, number: int) -> None:
        """The entry of a row is given its result."""
        self.row(number, "decided", "withdrawn").state = "done"

    # -- results come out ----------------------------------------------------------------------

    # spec: Operator!EmitRow
    def on_emit(self, at: int, number: int) -> None:
        """A result comes out: in order the oldest, otherwise one with no mark before it."""
        row = self.row(number, "done")
        place = next(place for place, each in enumerate(self.queue) if each is row)
        passed = self.queue[:place]
        in_turn = not passed if self.plan.ordered else not any(isinstance(each, HeldMark) for each in passed)
        require(in_turn, "it passes what comes before it")
        del self.queue[place]
        self.gone += 1

    # spec: Operator!EmitMark
    def on_emit_mark(self, at: int, kind: str, value: str) -> None:
        """A mark comes out, behind everything before it."""
        require(self.is_live, f"it is {self.phase}")
        head = self.queue[0] if self.queue else None
        require(isinstance(head, HeldMark) and head.elements[0] == (kind, value), "it is not the next to go")
        assert isinstance(head, HeldMark)
        del head.elements[0]
        if not head.elements:
            del self.queue[0]

    # -- snapshots -----------------------------------------------------------------------------

    # spec: Operator!Snapshot
    def on_snapshot(self, at: int, gone: int, entries: tuple[SavedRow | SavedMark, ...]) -> None:
        """A snapshot has everything that came in and has not gone out, as it is."""
        require(self.phase in ("running", "ended", "finished"), f"it is {self.phase}")
        require(gone == self.gone, f"{self.gone} rows have gone")
        held, rest = entries[: len(self.queue)], entries[len(self.queue) :]
        require(rest == tuple(self.rest), "what is to be restored is not in it as it was")
        require(len(held) == len(self.queue), f"{len(self.queue)} entries are held")
        for entry, saved in zip(self.queue, held, strict=True):
            require(self.is_saved(entry, saved, at), f"{saved} is not {entry}")
        self.saved.append(TakenSnapshot(self.plan.ordered, entries, self.admitted, self.gone))

    def is_saved(self, entry: Row | HeldMark, saved: SavedRow | SavedMark, at: int) -> bool:
        """Return True if `saved` says what there is to be said of an entry."""
        if isinstance(entry, HeldMark) or isinstance(saved, SavedMark):
            return (
                isinstance(entry, HeldMark)
                and isinstance(saved, SavedMark)
                and tuple(entry.elements) == saved.elements
            )
        if (saved.id, saved.label) != (entry.id, entry.label):
            return False
        if entry.state in ("done", "decided"):
            return saved.kind == ("done" if entry.state == "done" else "kept")
        attempts = entry.attempts - (entry.state == "running")
        spent = 0 if entry.began is None else at - entry.began
        left = max(0, entry.due - at) if entry.state in ("pausing", "failed") else -1
        # Whose pause is over waits as any other.
        slack = self.plan.slack
        over = saved.pause == -1 and left <= slack
        return (
            saved.kind == "open"
            and (saved.attempts, saved.repeats) == (attempts, entry.repeats)
            and abs(saved.spent - spent) <= slack
            and (over or (left >= 0 and saved.pause >= 0 and abs(saved.pause - left) <= slack))
        )


def require(holds: bool, otherwise: str) -> None:
    """Raise Refused unless it holds."""
    if not holds:
        raise Refused(otherwise)


def unnumbered(entries: tuple[SavedRow | SavedMark, ...]) -> list[SavedRow | SavedMark]:
    """The entries without the numbers that one life has given their rows."""
    return [each._replace(id=0) if isinstance(each, SavedRow) else each for each in entries]


def refusal(steps: Sequence[TraceStep]) -> str | None:
    """The first step that is refused, and why; None for steps that the specification allows."""
    try:
        OperatorModel().follow(steps)
    except Refused as refused:
        return str(refused)
    return None
