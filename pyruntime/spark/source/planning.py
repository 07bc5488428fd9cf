"""What each micro-batch of a stream reads: `MicroBatches`. Confined to the enumerator's thread.

The state is that of an offset, so that it can be taken up from any; what was discovered since, and not read
yet, comes besides. Nothing is read that is not in an offset, and a range that is in one is in no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Generic, TypeVar, cast

from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator
from pillarbox.sources.source import Source
from pillarbox.sources.split import Split
from pillarbox.spark.source.admission import Budget
from pillarbox.spark.source.aligning import Aligner
from pillarbox.spark.source.offsets import Offset

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)
C = TypeVar("C")

MOST = 10_000
"""Splits of one discovery."""
MOST_LIMITED = 256
"""The same where a micro-batch has a limit: what it does not read stands in the offset."""
ROUNDS = 3
"""How often what some splits have left over is dealt out to the others."""
PATIENCE = 1.0
"""Seconds that a micro-batch with nothing to read waits for a discovery that is under way."""
RETRY = 10.0
"""Seconds after which a discovery is tried again that has failed, where the source has no interval."""


class Candidate(Generic[S]):
    """An open split while a micro-batch is planned, and the slice of it so far."""

    __slots__ = ("else_one_of", "one_row", "rest", "slice", "split")

    def __init__(self, split: S, rest: S) -> None:
        self.split = split
        self.rest = rest
        """What may still be read of it."""
        self.one_row = False
        """Whether one row at most."""
        self.else_one_of: S | None = None
        """What one row may be read of where nothing of `rest` is there."""
        self.slice: S | None = None


class MicroBatches(Generic[S, C]):
    """Plans the micro-batches of one query, one after the other.

    discover: has `enumerator.discover(checkpoint, most)` called on another thread, one call at a time.
    aligner: None where splits are not aligned.
    """

    def __init__(
        self,
        source: Source[S, C],
        context: EnumeratorContext[S],
        discover: Callable[[Callable[[], tuple[Sequence[S], C]]], Future[tuple[Sequence[S], C]]],
        aligner: Aligner[S] | None = None,
    ) -> None:
        self._source = source
        self._context = context
        self._discover = discover
        self._aligner = aligner
        self._enumerator: SplitEnumerator[S, C] | None = None
        self._number = -1
        # In the order in which they wait.
        self._open: dict[str, S] = {}
        self._available_now = False
        # With availableNow: what was discovered at the beginning, and how far to read.
        self._frozen: list[tuple[Sequence[S], C]] | None = None
        self._targets: dict[str, S] = {}
        # The first of it that is not taken up; and after an offset, by its number.
        self._next = 0
        self._taken: dict[int, int] = {}
        self._under_way: Future[tuple[Sequence[S], C]] | None = None
        self._asked_with: C | None = None
        self._known = False
        self._more = True
        self._endless = False
        self._due = 0.0

    @property
    def number(self) -> int:
        """That of the offset from which the next micro-batch goes on; -1 before the first `take_up`."""
        return self._number

    @property
    def enumerator(self) -> SplitEnumerator[S, C]:
        """The enumerator. Raises RuntimeError before the first `take_up`."""
        if self._enumerator is None:
            raise RuntimeError("no offset was taken up yet")
        return self._enumerator

    def take_up(self, offset: Offset[S, C]) -> None:
        """Go on from `offset`, with a new enumerator."""
        # spec: MicroBatches!Restart
        self.close()
        if offset.number == 0:
            self._enumerator = self._source.create_enumerator(self._context)
        else:
            self._enumerator = self._source.restore_enumerator(self._context, cast("C", offset.checkpoint))
        self._number = offset.number
        self._open = {split.split_id: split for split in offset.splits}
        self._known, self._more, self._due = offset.number > 0, True, 0.0
        self._under_way, self._endless = None, False
        if self._aligner is not None:
            self._aligner.begin(offset.splits, offset.times)
        if self._available_now:
            # A plan that was dropped is made again of the same, and not of what came since.
            if offset.number in self._taken:
                self._next = self._taken[offset.number]
            else:
                self._freeze()

    def only_what_is_there(self) -> None:
        """Read what is there at the next `take_up`, or now, and nothing that comes later: `availableNow`."""
        self._available_now, self._under_way = True, None
        if self._enumerator is not None:
            self._freeze()

    def plan(self, limit: ReadLimit) -> Offset[S, C] | None:
        """The offset after the next micro-batch, of at most `limit`; None if there is nothing to read.

        Raises what discovery has raised, if nothing is known yet.
        """
        # spec: MicroBatches!Plan
        budget = Budget(limit)
        most = MOST if not budget.limited else min(MOST_LIMITED, limit.files or MOST_LIMITED)
        self._look_around(most)
        candidates = self._candidates(self._open.values())
        self._deal(candidates, budget)
        while True:
            slices = [each.slice for each in candidates if each.slice is not None]
            done = sum(each.slice is not None and each.slice.stop == each.split.stop for each in candidates)
            new = self._discovered(most + done, budget, anything=bool(slices))
            if new is None:
                break
            found = self._candidates(new)
            self._deal(found, budget)
            candidates += found
        self._let_go({each.split.split_id for each in candidates if each.slice is not None})
        if not slices:
            return None
        return self._behind(candidates, slices)

    def close(self) -> None:
        """Let go of the enumerator. Idempotent."""
        enumerator, self._enumerator = self._enumerator, None
        if enumerator is not None:
            enumerator.close()

    # -- slices --------------------------------------------------------------------------------------

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

    def _deal(self, candidates: list[Candidate[S]], budget: Budget) -> None:
        """Slices of the candidates, as far as the budget goes: even shares, then what others left over."""
        for _ in range(ROUNDS):
            again = []
            for at, each in enumerate(candidates):
                if budget.spent:
                    return
                piece = self._front(each, budget.share(len(candidates) - at))
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
            candidates = again

    def _front(self, each: Candidate[S], share: ReadLimit) -> S | None:
        """What can be read now of a candidate, within its share."""
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

    def _behind(self, candidates: list[Candidate[S]], slices: list[S]) -> Offset[S, C]:
        """Take the slices for read: the offset behind them."""
        for each in candidates:
            if each.slice is None:
                continue
            split_id = each.split.split_id
            # Those that were read go behind those that wait.
            del self._open[split_id]
            if each.slice.stop != each.split.stop:
                self._open[split_id] = each.split.starting_at(each.slice.stop)
            elif self._aligner is not None:
                self._aligner.finished(split_id)
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

    def _let_go(self, read: Collection[str]) -> None:
        """Splits that are gone, but those that are `read` now, are open no more."""
        if self._frozen is not None and self._next < len(self._frozen):
            # What is known with these knows the splits still.
            return
        # spec: MicroBatches!LetGo
        waiting = [split for split_id, split in self._open.items() if split_id not in read]
        for split_id in self.enumerator.let_go(waiting):
            del self._open[split_id]
            if self._aligner is not None:
                self._aligner.finished(split_id)

    # -- discovery -----------------------------------------------------------------------------------

    def _look_around(self, most: int) -> None:
        """Begin a discovery if it is time, so that it goes on while slices are cut."""
        if (
            self._frozen is None
            and self._under_way is None
            and time.monotonic() >= self._due
            and self._backlog() < most
        ):
            self._begin(most)

    def _backlog(self) -> int:
        """Splits with an end that wait. They must not be ever more: each offset has them all."""
        return sum(split.stop is not None or split.files > 0 for split in self._open.values())

    def _begin(self, most: int) -> Future[tuple[Sequence[S], C]]:
        enumerator = self.enumerator
        self._asked_with = checkpoint = enumerator.checkpoint
        future = self._under_way = self._discover(lambda: enumerator.discover(checkpoint, most))
        return future

    def _discovered(self, most: int, budget: Budget, *, anything: bool) -> list[S] | None:
        """The splits of one more discovery; None if there is none, or it need not be waited for."""
        if self._frozen is not None:
            if budget.spent or self._next == len(self._frozen):
                return None
            self._next += 1
            return self._take(*self._frozen[self._next - 1])
        future = self._under_way
        if future is None:
            most -= self._backlog()
            if not self._more or (budget.spent and not self._endless) or most <= 0:
                return None
            future = self._begin(most)
        # Endless splits are all taken up before any is read, so that each gets its share.
        at_once = self._known and not (self._more and self._endless)
        # Not by the time-out of `result`, which is no other error than one of a service.
        if not wait((future,), None if not at_once else 0.0 if anything else PATIENCE).done:
            return None
        try:
            found, checkpoint = future.result()
        except Exception:
            self._under_way = None
            self._due = time.monotonic() + (self.enumerator.discovery_interval or RETRY)
            if not self._known:
                raise
            log.exception("discovery of splits has failed; it is tried again")
            return None
        self._under_way = None
        if self.enumerator.checkpoint is not self._asked_with:
            # It has learnt something else meanwhile, which must not be lost.
            self._more = True
            return []
        return self._take(found, checkpoint)

    def _take(self, found: Sequence[S], checkpoint: C) -> list[S]:
        """Take up what was discovered, and the knowledge of it, in one step."""
        # spec: MicroBatches!Discover
        interval = self.enumerator.discovery_interval
        self._due = float("inf") if interval is None else time.monotonic() + interval
        self._known, self._more = True, bool(found)
        self._endless = any(split.stop is None and not split.files for split in found)
        self.enumerator.checkpoint = checkpoint
        for split in found:
            if split.split_id in self._open:
                raise ValueError(f"split {split.split_id!r} was discovered twice")
            self._open[split.split_id] = split
        if self._aligner is not None:
            self._aligner.opened(found)
        return list(found)

    def _freeze(self) -> None:
        """Discover all that is there, and note how far each split goes."""
        checkpoint, steps = self.enumerator.checkpoint, list[tuple[Sequence[S], C]]()
        enumerator = self.enumerator
        while True:
            known = checkpoint
            found, checkpoint = self._discover(partial(enumerator.discover, known, MOST_LIMITED)).result()
            if not found:
                break
            steps.append((found, checkpoint))
        self._frozen, self._next, self._taken = steps, 0, {self._number: 0}
        self._targets = {}
        for splits in (self._open.values(), *(found for found, _ in steps)):
            for split in splits:
                target = split if split.stop is not None else enumerator.advance(split, ReadLimit())
                if target is not None:
                    self._targets[split.split_id] = target
