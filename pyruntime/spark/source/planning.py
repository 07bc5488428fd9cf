"""The plans of a stream, one for each micro-batch: `MicroBatches`. One thread uses it, Spark's.

The state is that of an offset, so that it can be taken up from any; what was discovered since, and not read
yet, comes besides. Nothing is read that is not in an offset, and a range that is in one is in no other. A
plan is an assignment of slices, so it is made on the enumerator's thread, as in every use of a source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import wait
from typing import Any, Generic, TypeVar

from pillarbox.sources.enumerating import Checkpoint, EnumeratorThread, Waiting
from pillarbox.sources.enumerator import ReadLimit, SplitEnumerator
from pillarbox.sources.source import Source
from pillarbox.sources.split import Split
from pillarbox.sources.split_coordinator import Delivery, SplitCoordinator
from pillarbox.spark.source.admission import Budget
from pillarbox.spark.source.aligning import Aligner
from pillarbox.spark.source.offsets import Offset

S = TypeVar("S", bound=Split)
C = TypeVar("C")

MAX_SPLITS_PER_DISCOVERY = 10_000
MAX_SPLITS_LIMITED = 256
"""The same where a micro-batch has a limit: what it does not read stands in the offset."""
MAX_ROUNDS = 3
"""In each, what some splits have left over is dealt out to the others."""
DISCOVERY_WAIT_S = 1.0
"""A micro-batch with nothing to read waits so long for a discovery that is under way."""


class Candidate(Generic[S]):
    """An open split while a micro-batch is planned, and the slice of it so far."""

    __slots__ = ("else_one_of", "one_row", "rest", "slice", "split")

    def __init__(self, split: S, rest: S) -> None:
        self.split = split
        self.rest = rest
        """The part that may still be read."""
        self.one_row = False
        """True if one row may be read at most."""
        self.else_one_of: S | None = None
        """The part of which one row may be read where nothing of `rest` is there."""
        self.slice: S | None = None


class _Plan(Generic[S]):
    """A micro-batch while it is planned."""

    def __init__(self, limit: ReadLimit) -> None:
        self.budget = Budget(limit)
        self.most = MAX_SPLITS_PER_DISCOVERY
        """Splits with an end that may wait: each offset has them all."""
        if self.budget.limited:
            self.most = min(MAX_SPLITS_LIMITED, limit.files or MAX_SPLITS_LIMITED)
        self.candidates: list[Candidate[S]] = []
        self.timeout: float | None = None
        """Seconds for which the discovery that is under way is waited for; None: until it ends."""

    @property
    def read(self) -> list[Candidate[S]]:
        """Those of which something is read."""
        return [each for each in self.candidates if each.slice is not None]


class MicroBatches(Generic[S, C]):
    """Plans the micro-batches of one query, one after the other. One thread uses it.

    parallelism: tasks of a micro-batch, at most. aligner: None where splits are not aligned.
    """

    def __init__(self, source: Source[S, C], parallelism: int, aligner: Aligner[S] | None = None) -> None:
        self._source = source
        self._aligner = aligner
        self.coordinator: SplitCoordinator[S] = SplitCoordinator(parallelism, Delivery.PLANNED)
        self._thread: EnumeratorThread[S, C] | None = None
        self._number = -1
        self._available_now = False
        # The enumerator's thread; open splits in the order in which they wait.
        self._open: dict[str, S] = {}
        self._endless = False
        # What the enumerator of a new query knows before it has looked.
        self._began_with: C | None = None
        # With availableNow: what was discovered at the beginning, and how far to read.
        self._frozen: list[tuple[Sequence[S], C]] | None = None
        self._targets: dict[str, S] = {}
        # The first of it that is not taken up; and after an offset, by its number.
        self._next = 0
        self._taken: dict[int, int] = {}

    @property
    def number(self) -> int:
        """That of the offset from which the next micro-batch goes on; -1 before the first `take_up`."""
        return self._number

    @property
    def thread(self) -> EnumeratorThread[S, C]:
        """The enumerator's thread. Raises RuntimeError before the first `take_up`."""
        if self._thread is None:
            raise RuntimeError("no offset was taken up yet")
        return self._thread

    @property
    def enumerator(self) -> SplitEnumerator[S, C]:
        """The enumerator. On its thread."""
        return self.thread.enumerator

    def take_up(self, offset: Offset[S, C]) -> None:
        """Go on from `offset`, with a new enumerator."""
        # spec: SplitAssignment!Restore
        self.close()
        restored: Checkpoint[S, Any] | None = None
        if offset.number:
            restored = Checkpoint(offset.checkpoint, [Waiting(split) for split in offset.splits])
        self._number = offset.number
        self._open, self._endless = {}, False
        if self._aligner is not None:
            self._aligner.begin(offset.splits, offset.times)
        self._thread = self.coordinator.thread(self._source, restored=restored, on_demand=True).start()
        self._thread.call(self._take_pending)
        self._began_with = self._thread.call(lambda: self.enumerator.checkpoint)
        self._endless = False
        if self._available_now:
            # A plan that was dropped is made again of the same, and not of what came since.
            if offset.number in self._taken:
                self._next = self._taken[offset.number]
            else:
                self._freeze()

    def only_what_is_there(self) -> None:
        """Read what is there at the next `take_up`, or now, and nothing that comes later: `availableNow`."""
        self._available_now = True
        if self._thread is not None:
            self._freeze()

    def plan(self, limit: ReadLimit) -> Offset[S, C] | None:
        """The offset after the next micro-batch, of at most `limit`; None if there is nothing to read.

        The first one is there also when it reads nothing, if anything was found: where splits begin is
        settled by it, and must not be settled anew, later, by a query that is started again.
        Raises what discovery has raised, if nothing is known yet.
        """
        # spec: SplitAssignment!Plan
        thread, plan = self.thread, _Plan[S](limit)
        thread.call(self._begin, plan)
        while thread.call(self._finds_more, plan):
            if self._frozen is None:
                caught_up = thread.caught_up()
                # Not by the time-out of `result`, which is no other error than one of a service.
                if not wait((caught_up,), plan.timeout).done:
                    break
                caught_up.result()
            thread.call(self._deal_found, plan)
        return thread.call(self._end, plan)

    def close(self) -> None:
        """Let go of the enumerator. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    # -- the enumerator's thread: steps of a plan ----------------------------------------------------

    def _begin(self, plan: _Plan[S]) -> None:
        """Begin a discovery if it is due, so that it goes on while slices are cut; and cut them."""
        self._take_pending()
        if self._frozen is None and self._backlog() < plan.most:
            self.thread.look(plan.most)
        self._deal(plan, self._open.values())

    def _finds_more(self, plan: _Plan[S]) -> bool:
        """Return True if the plan goes on with what a discovery finds, that is under way or begun here."""
        read = plan.read
        if self._frozen is not None:
            return not plan.budget.spent and self._next < len(self._frozen)
        thread = self.thread
        if not thread.discovers:
            done = sum(each.slice is not None and each.slice.stop == each.split.stop for each in read)
            most = plan.most + done - self._backlog()
            if not thread.more_expected or (plan.budget.spent and not self._endless) or most <= 0:
                return False
            thread.look(most)
        # Endless splits are all taken up before any is read, so that each gets its share.
        at_once = thread.knows and not (thread.more_expected and self._endless)
        plan.timeout = None if not at_once else 0.0 if read else DISCOVERY_WAIT_S
        return True

    def _deal_found(self, plan: _Plan[S]) -> None:
        if self._frozen is not None:
            found, self.enumerator.checkpoint = self._frozen[self._next]
            self._next += 1
            self._take_up(found)
        else:
            found = self._take_pending()
        self._deal(plan, found)

    def _end(self, plan: _Plan[S]) -> Offset[S, C] | None:
        # What was found meanwhile is known, so the offset must have it.
        self._take_pending()
        self._let_go({each.split.split_id for each in plan.read})
        if self._aligner is not None:
            self._aligner.planned(bool(plan.read), self.enumerator)
        begins = self._number == 0 and self.enumerator.checkpoint != self._began_with
        return self._behind(plan.read) if plan.read or begins else None

    def _take_pending(self) -> list[S]:
        found = [each.split for each in self.thread.pending.take_all()]
        self._take_up(found)
        return found

    def _take_up(self, found: Collection[S]) -> None:
        # spec: SplitAssignment!TakeUp
        if found:
            self._endless = any(split.stop is None and not split.files for split in found)
        self._open.update((split.split_id, split) for split in found)
        if self._aligner is not None:
            self._aligner.opened(found)

    def _backlog(self) -> int:
        """Splits with an end that wait. They must not be ever more: each offset has them all."""
        return sum(split.stop is not None or split.files > 0 for split in self._open.values())

    def _close_split(self, split_id: str) -> None:
        """Nothing more of it is read; what comes by its name is another one."""
        del self._open[split_id]
        self.thread.forget([split_id])
        if self._aligner is not None:
            self._aligner.finished(split_id)

    def _let_go(self, read: Collection[str]) -> None:
        """Splits that are gone, but those that are `read` now, are open no more."""
        if self._frozen is not None and self._next < len(self._frozen):
            # What is known with these knows the splits still.
            return
        # spec: SplitAssignment!LetGo
        waiting = [split for split_id, split in self._open.items() if split_id not in read]
        for split_id in self.enumerator.let_go(waiting):
            self._close_split(split_id)

    def _behind(self, read: list[Candidate[S]]) -> Offset[S, C]:
        """Take the slices for read: the offset behind them."""
        slices = []
        for each in read:
            assert each.slice is not None
            slices.append(each.slice)
            split_id = each.split.split_id
            if each.slice.stop == each.split.stop:
                self._close_split(split_id)
            else:
                # Those that were read go behind those that wait.
                del self._open[split_id]
                self._open[split_id] = each.split.starting_at(each.slice.stop)
        self._number += 1
        if self._frozen is not None:
            self._taken[self._number] = self._next
        return Offset(
            number=self._number,
            checkpoint=self.enumerator.snapshot(),
            splits=tuple(self._open.values()),
            slices=tuple(slices),
            times={} if self._aligner is None else self._aligner.times(),
        )

    # -- the enumerator's thread: slices -------------------------------------------------------------

    def _deal(self, plan: _Plan[S], splits: Iterable[S]) -> None:
        """Slices of the splits, as far as the budget goes: even shares, then what others left over."""
        found, budget = self._candidates(splits), plan.budget
        plan.candidates += found
        for _ in range(MAX_ROUNDS):
            again = []
            for at, each in enumerate(found):
                if budget.spent:
                    return
                piece = self._front(each, budget.share(len(found) - at))
                if piece is None:
                    continue
                if not budget.admits(piece):
                    # What waits longest is not passed by, or a large one would wait for ever.
                    return
                budget.take(piece)
                each.slice = piece if each.slice is None else each.slice.up_to(piece.stop)
                if piece.stop != each.rest.stop and not each.one_row:
                    each.rest = each.rest.starting_at(piece.stop)
                    if piece.rows or piece.nbytes:
                        again.append(each)
            if not again or not budget.limited:
                return
            found = again

    def _candidates(self, splits: Iterable[S]) -> list[Candidate[S]]:
        found = []
        aligner = self._aligner
        for split in splits:
            rest = split
            if self._frozen is not None:
                target = self._targets.get(split.split_id)
                if target is None or (target.stop is not None and target.stop == split.start):
                    if aligner is not None:
                        aligner.rests(split.split_id)
                    continue
                rest = split.up_to(target.stop)
            found.append(Candidate(split, rest))
        if aligner is None:
            return found
        aligner.plan()
        allowed = []
        for each in found:
            readable = aligner.readable(each.rest, self.enumerator)
            if readable is None:
                aligner.has_something(each.split.split_id)
            else:
                each.rest, each.one_row = readable.rest, readable.one_row
                each.else_one_of = readable.else_one_of
                allowed.append(each)
        return allowed

    def _front(self, each: Candidate[S], share: ReadLimit) -> S | None:
        """Give what can be read now of a candidate, within its share."""
        split_id = each.split.split_id
        if each.one_row:
            share = share._replace(rows=1)
        piece = self._advanced(each.split, each.rest, share)
        if piece is None and each.else_one_of is not None:
            each.one_row = True
            piece = self._advanced(each.split, each.else_one_of, share._replace(rows=1))
        if self._aligner is not None and each.slice is None:
            tell = self._aligner.has_nothing if piece is None else self._aligner.has_something
            tell(split_id)
        return piece

    def _advanced(self, split: S, rest: S, limit: ReadLimit) -> S | None:
        piece = self.enumerator.advance(rest, limit)
        if piece is None:
            return None
        if piece.split_id != split.split_id:
            raise ValueError(f"advance({split.split_id!r}) gave {piece.split_id!r}: must be its front")
        return None if piece.start == piece.stop != split.stop else piece

    # -- availableNow --------------------------------------------------------------------------------

    def _freeze(self) -> None:
        """Discover all that is there, and note how far each split goes. Spark's thread."""
        thread = self.thread
        thread.caught_up().result()
        thread.call(self._take_pending)
        steps = thread.discover_all(MAX_SPLITS_LIMITED).result()
        thread.call(self._note_targets, steps)

    def _note_targets(self, steps: list[tuple[Sequence[S], C]]) -> None:
        self._frozen, self._next, self._taken = steps, 0, {self._number: 0}
        self._targets = {}
        for splits in (self._open.values(), *(found for found, _ in steps)):
            for split in splits:
                target = split if split.stop is not None else self.enumerator.advance(split, ReadLimit())
                if target is not None:
                    self._targets[split.split_id] = target
