"""Micro-batches: offsets of a stream, `MicroBatches`, which plans them one after the other, and `pack`.

The state is that of an offset, so that it can be taken up from any; what was discovered since, and not read
yet, comes besides. Nothing is read that is not in an offset, and a range that is in one is in no other. A
plan is an assignment of slices, so it is made on the enumerator's thread, as in every use of a source.

Spark writes an offset into its log before it runs the micro-batch that ends there. So a micro-batch that is
run again after a crash, by another process or with other parallelism, reads the same ranges: they stand in
the offset. Spark asks a Python data source for no preferred machines, so nearness has no say in partitions.
"""

from __future__ import annotations

import heapq
import json
import lzma
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from pillarbox.sources.enumerating import Checkpoint, EnumeratorThread, Waiting
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.source import Source
from pillarbox.sources.split import Split
from pillarbox.sources.split_coordinator import SplitCoordinator

S = TypeVar("S", bound=Split)
C = TypeVar("C")

VERSION = 1
DEFAULT_MAX_FILES = 10_000
"""Files of a micro-batch where no option says how many: its plan stands in the offset, and in its tasks."""
PACKING_PRESET = 1
"""Of LZMA: six times as fast as by default, a fifth larger. Each offset has all open splits packed."""
MAX_INLINE_CHARS = 4_000
"""Characters of a list of splits that stands in the offset as it is."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Offset(Generic[S, C]):
    """The place of a stream after some micro-batches. A plain value.

    number: how many micro-batches lie before it; with 0 nothing is known yet, and nothing else is written.
    checkpoint: what the enumerator knows. splits: those that are not finished, each starting where the next
    read begins, those that have waited longest first. slices: what is read between the offset before this
    one and this one.
    """

    number: int = 0
    checkpoint: C | None = None
    splits: tuple[S, ...] = ()
    slices: tuple[S, ...] = ()

    def positions(self) -> dict[str, Any]:
        """The position up to which each split has been read, by its id."""
        found = {split.split_id: split.start for split in self.splits if split.start is not None}
        return found | {split.split_id: split.stop for split in self.slices}


class OffsetCodec(Generic[S, C]):
    """Writes the offsets of a source as JSON, and reads them. Thread-safe."""

    def __init__(self, source: Source[S, C]) -> None:
        self._splits = source.split_serializer
        self._checkpoints = source.checkpoint_serializer

    def to_json(self, offset: Offset[S, C]) -> Json:
        """As the offset log holds it."""
        if offset.number == 0:
            return {"version": VERSION, "number": 0}
        return {
            "version": VERSION,
            "number": offset.number,
            "enumerator": {
                "version": self._checkpoints.version,
                "checkpoint": self._checkpoints.to_json(cast("C", offset.checkpoint)),
            },
            "split_version": self._splits.version,
            "splits": self._write(offset.splits),
            "slices": self._write(offset.slices),
        }

    def from_json(self, written: Json) -> Offset[S, C]:
        """Read what `to_json` has written. Raises ValueError for what it has not."""
        number = number_of(written)
        if number == 0:
            return Offset()
        kept = written["enumerator"]
        return Offset(
            number=number,
            checkpoint=self._checkpoints.from_json(kept["version"], kept["checkpoint"]),
            splits=self._read(written, "splits"),
            slices=self._read(written, "slices"),
        )

    def slices(self, start: Json, end: Json) -> tuple[S, ...]:
        """Give what is read from `start` to `end`: what `end` says, and nothing else.

        Raises ValueError unless the one follows the other, or is the same.
        """
        begun, number = number_of(start), number_of(end)
        if begun == number:
            return ()
        if number != begun + 1:
            raise ValueError(
                f"a micro-batch from offset {begun} to {number}: must be from one offset to the next. Has "
                "the checkpoint folder been changed?"
            )
        return self._read(end, "slices")

    def _write(self, splits: tuple[S, ...]) -> Any:
        written = [self._splits.to_json(split) for split in splits]
        text = json.dumps(written, separators=(",", ":"))
        if len(text) <= MAX_INLINE_CHARS:
            return written
        return {"packed": b64encode(lzma.compress(text.encode(), preset=PACKING_PRESET)).decode()}

    def _read(self, offset: Json, name: str) -> tuple[S, ...]:
        written = offset[name]
        if not isinstance(written, list):
            try:
                written = json.loads(lzma.decompress(b64decode(written["packed"])))
            except (lzma.LZMAError, KeyError, TypeError, ValueError):
                raise ValueError(
                    f"{name}={written!r:.200}: must be a list of splits as it was written"
                ) from None
        return tuple(self._splits.from_json(offset["split_version"], each) for each in written)


def number_of(written: Json) -> int:
    """Give the number of an offset. Raises ValueError for what is none of Pillarbox."""
    if not isinstance(written, dict) or not isinstance(written.get("number"), int):
        raise ValueError(
            "the checkpoint folder holds an offset that is not one of Pillarbox: was the folder that of "
            "another source?"
        )
    version = written.get("version")
    if version != VERSION:
        raise ValueError(f"offset of version {version!r}: this Pillarbox reads version {VERSION}")
    number: int = written["number"]
    return number


# -- micro-batches ---------------------------------------------------------------------------------

MAX_SPLITS_UNLIMITED = 10_000
"""Splits that one discovery finds at most."""
MAX_SPLITS_LIMITED = 256
"""The same where a micro-batch has a limit: what it does not read stands in the offset."""
MAX_ROUNDS = 3
"""In each, what some splits have left over is dealt out to the others."""
DISCOVERY_WAIT_S = 1.0
"""A micro-batch with nothing to read waits so long for a discovery that is under way."""


@dataclass(slots=True, eq=False)
class Candidate(Generic[S]):
    """An open split while a micro-batch is planned, and the slice of it so far."""

    split: S
    rest: S
    """The part that may still be read."""
    slice: S | None = None


class Plan(Generic[S]):
    """A micro-batch while it is planned: its candidates, and what it may still read.

    A split whose size nobody knows counts for nothing. One that is larger than the whole limit is read all
    the same where nothing was read yet, if it cannot be cut: otherwise it would never be.
    max_splits: splits of one discovery under a limit.
    """

    def __init__(self, limit: ReadLimit, max_splits: int) -> None:
        self.left = limit
        self._taken = False
        few_files = limit.files is not None and limit.files < DEFAULT_MAX_FILES
        self.limited = limit.rows is not None or limit.nbytes is not None or few_files
        """True if splits are cut, or if many of those that are found may have to wait."""
        self.most = MAX_SPLITS_UNLIMITED
        """Splits with an end that may wait: each offset has them all."""
        if self.limited:
            self.most = min(max_splits, limit.files or max_splits)
        self.candidates: list[Candidate[S]] = []
        self.timeout: float | None = None
        """Seconds for which the discovery that is under way is waited for; None: until it ends."""

    @property
    def read(self) -> list[Candidate[S]]:
        """Those of which something is read."""
        return [each for each in self.candidates if each.slice is not None]

    @property
    def spent(self) -> bool:
        """True if nothing more may be read."""
        return any(left is not None and left <= 0 for left in self.left)

    def share(self, splits: int) -> ReadLimit:
        """Return what one of so many splits that are to come may read of the rest; at least one of each."""
        parts = zip(self.left, (splits, splits, 1), strict=True)
        return ReadLimit(*(None if left is None else max(1, left // part) for left, part in parts))

    def takes(self, piece: Split) -> bool:
        """Count a piece, if there is room for it."""
        sizes = (piece.rows, piece.nbytes, piece.files)
        room = [*zip(self.left, sizes, strict=True)]
        if self._taken and any(left is not None and size is not None and size > left for left, size in room):
            return False
        self._taken = True
        self.left = ReadLimit(*(None if left is None else left - (size or 0) for left, size in room))
        return True


class MicroBatches(Generic[S, C]):
    """Plans the micro-batches of one query, one after the other. One thread uses it.

    parallelism: tasks of a micro-batch, at most. max_splits, discovery_wait: see `MAX_SPLITS_LIMITED` and
    `DISCOVERY_WAIT_S`.
    """

    thread: EnumeratorThread[S, C]
    """The enumerator's thread, once an offset was taken up."""

    def __init__(
        self,
        source: Source[S, C],
        parallelism: int,
        *,
        max_splits: int = MAX_SPLITS_LIMITED,
        discovery_wait: float = DISCOVERY_WAIT_S,
    ) -> None:
        self._source = source
        self._max_splits = max_splits
        self._discovery_wait = discovery_wait
        self.coordinator: SplitCoordinator[S] = SplitCoordinator(parallelism, planned=True)
        self.number = -1
        """That of the offset from which the next micro-batch goes on; -1 while there is none."""
        self._available_now: ReadLimit | None = None
        # The enumerator's thread; open splits in the order in which they wait.
        self._open: dict[str, S] = {}
        self._endless = False
        # What the enumerator of a new query knows before it has looked.
        self._began_with: C | None = None
        # With availableNow: what was discovered at the beginning and is not taken up, and how far to read.
        self._frozen: deque[tuple[Sequence[S], C]] | None = None
        self._targets: dict[str, S] = {}

    def take_up(self, offset: Offset[S, C]) -> None:
        """Go on from `offset`, with a new enumerator."""
        # spec: SplitAssignment!Restore
        self.close()
        restored: Checkpoint[S, Any] | None = None
        if offset.number:
            restored = Checkpoint(offset.checkpoint, [Waiting(split) for split in offset.splits])
        self._open.clear()
        self.thread = EnumeratorThread(
            self._source, self.coordinator, restored=restored, on_demand=True
        ).start()
        self.number = offset.number
        self.thread.call(self._restored)
        if self._available_now is not None:
            self._freeze(self._available_now)

    def only_what_is_there(self, limit: ReadLimit) -> None:
        """Read what is there at the next `take_up`, or now, and nothing that comes later: `availableNow`.

        limit: that of the micro-batches to come.
        """
        self._available_now = limit
        if self.number >= 0:
            self._freeze(limit)

    def plan(self, limit: ReadLimit) -> Offset[S, C] | None:
        """The offset after the next micro-batch, of at most `limit`; None if there is nothing to read.

        The first one is there also when it reads nothing, if anything was found: where splits begin is
        settled by it, and must not be settled anew, later, by a query that is started again.
        Raises what discovery has raised, if nothing is known yet.
        """
        # spec: SplitAssignment!Plan
        thread, plan = self.thread, Plan[S](limit, self._max_splits)
        more = thread.call(self._begin, plan)
        while more:
            if self._frozen is None:
                caught_up = thread.caught_up()
                # Not by the time-out of `result`, whose error a service may raise too.
                if not wait((caught_up,), plan.timeout).done:
                    break
                caught_up.result()
            more = thread.call(self._go_on, plan)
        return thread.call(self._end, plan)

    def close(self) -> None:
        """Let go of the enumerator. Idempotent."""
        if self.number >= 0:
            self.number = -1
            self.thread.close()

    # -- the enumerator's thread: steps of a plan ----------------------------------------------------

    def _restored(self) -> None:
        self._take_pending()
        self._endless = False
        self._began_with = self.thread.enumerator.checkpoint

    def _begin(self, plan: Plan[S]) -> bool:
        """Begin a discovery if it is due, so that it goes on while slices are cut; and cut them."""
        self._take_pending()
        if self._frozen is None and self._backlog() < plan.most:
            self.thread.look(plan.most)
        self._deal(plan, self._open.values())
        return self._finds_more(plan)

    def _go_on(self, plan: Plan[S]) -> bool:
        """Deal out what was found meanwhile."""
        if self._frozen is not None:
            found, self.thread.enumerator.checkpoint = self._frozen.popleft()
            self._take_up(found)
        else:
            found = self._take_pending()
        self._deal(plan, found)
        return self._finds_more(plan)

    def _finds_more(self, plan: Plan[S]) -> bool:
        """Return True if the plan goes on with what a discovery finds, that is under way or begun here."""
        if self._frozen is not None:
            return bool(self._frozen) and not plan.spent
        thread, read = self.thread, plan.read
        if not thread.discovers:
            done = sum(each.slice is not None and each.slice.stop == each.split.stop for each in read)
            most = plan.most + done - self._backlog()
            if not thread.more_expected or (plan.spent and not self._endless) or most <= 0:
                return False
            thread.look(most)
        # Endless splits are all taken up before any is read, so that each gets its share.
        at_once = thread.knows and not (thread.more_expected and self._endless)
        plan.timeout = None if not at_once else 0.0 if read else self._discovery_wait
        return True

    def _end(self, plan: Plan[S]) -> Offset[S, C] | None:
        # What was found meanwhile is known, so the offset must have it.
        self._take_pending()
        read, enumerator = plan.read, self.thread.enumerator
        self._let_go({each.split.split_id for each in read})
        begins = self.number == 0 and enumerator.checkpoint != self._began_with
        return self._behind(read) if read or begins else None

    def _take_pending(self) -> list[S]:
        found = [each.split for each in self.thread.pending.take_all()]
        self._take_up(found)
        return found

    def _take_up(self, found: Collection[S]) -> None:
        # spec: SplitAssignment!TakeUp
        if found:
            self._endless = any(split.stop is None and not split.files for split in found)
        self._open.update((split.split_id, split) for split in found)

    def _backlog(self) -> int:
        """Splits with an end that wait. They must not be ever more: each offset has them all."""
        return sum(split.stop is not None or split.files > 0 for split in self._open.values())

    def _close_split(self, split_id: str) -> None:
        """Nothing more of it is read; what comes by its name is another one."""
        del self._open[split_id]
        self.thread.forget([split_id])

    def _let_go(self, read: Collection[str]) -> None:
        """Splits that are gone, but those that are `read` now, are open no more."""
        if self._frozen:
            # What is known with these knows the splits still.
            return
        # spec: SplitAssignment!LetGo
        waiting = [split for split_id, split in self._open.items() if split_id not in read]
        for split_id in self.thread.enumerator.let_go(waiting):
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
        self.number += 1
        return Offset(
            number=self.number,
            checkpoint=self.thread.enumerator.snapshot(),
            splits=tuple(self._open.values()),
            slices=tuple(slices),
        )

    # -- the enumerator's thread: slices -------------------------------------------------------------

    def _deal(self, plan: Plan[S], splits: Iterable[S]) -> None:
        """Slices of the splits, as far as the limit goes: even shares, then what others left over."""
        found = self._candidates(splits)
        plan.candidates += found
        for _ in range(MAX_ROUNDS):
            again = []
            for at, each in enumerate(found):
                if plan.spent:
                    return
                piece = self._advanced(each.split, each.rest, plan.share(len(found) - at))
                if piece is None:
                    continue
                if not plan.takes(piece):
                    # What waits longest is not passed by, or a large one would wait for ever.
                    return
                each.slice = piece if each.slice is None else each.slice.up_to(piece.stop)
                if piece.stop != each.rest.stop:
                    # Of the piece, which may know more by now, as how many bytes a row has.
                    each.rest = piece.starting_at(piece.stop).up_to(each.rest.stop)
                    if piece.rows or piece.nbytes:
                        again.append(each)
            if not again or not plan.limited:
                return
            found = again

    def _candidates(self, splits: Iterable[S]) -> list[Candidate[S]]:
        found = []
        for split in splits:
            rest = split
            if self._frozen is not None:
                target = self._targets.get(split.split_id)
                if target is None or (target.stop is not None and target.stop == split.start):
                    continue
                rest = split.up_to(target.stop)
            found.append(Candidate(split, rest))
        return found

    def _advanced(self, split: S, rest: S, limit: ReadLimit) -> S | None:
        piece = self.thread.enumerator.advance(rest, limit)
        if piece is None:
            return None
        if piece.split_id != split.split_id:
            raise ValueError(f"advance({split.split_id!r}) gave {piece.split_id!r}: must be its front")
        return None if piece.start == piece.stop != split.stop else piece

    # -- availableNow --------------------------------------------------------------------------------

    def _freeze(self, limit: ReadLimit) -> None:
        """Discover all that is there, and note how far each split goes. Spark's thread."""
        thread = self.thread
        thread.caught_up().result()
        thread.call(self._take_pending)
        # In steps that are taken up as a whole: what a micro-batch does not read of one stands in the offset.
        steps = thread.discover_all(Plan[S](limit, self._max_splits).most).result()
        thread.call(self._note_targets, steps)

    def _note_targets(self, steps: list[tuple[Sequence[S], C]]) -> None:
        self._frozen, self._targets = deque(steps), {}
        for splits in (self._open.values(), *(found for found, _ in steps)):
            for split in splits:
                target = (
                    split if split.stop is not None else self.thread.enumerator.advance(split, ReadLimit())
                )
                if target is not None:
                    self._targets[split.split_id] = target


# -- partitions ------------------------------------------------------------------------------------


def pack(splits: Sequence[S], most: int, assigned_to: Callable[[S], int | None]) -> list[list[S]]:
    """Deal `splits` out to at most `most` partitions, none of them empty; each keeps their order.

    A split for which `assigned_to` gives a number goes to the partition of that number, modulo `most`. The
    others go, the largest first, to whichever has least to read: by bytes if all splits know theirs, else by
    rows, else by their number (the greedy rule for scheduling of Graham, 1969). Pieces of one split, of which
    there are at most `most`, go to different partitions: a reader has a split once.
    """
    sizes = _sizes(splits)
    rules = [assigned_to(split) for split in splits]
    ruled = any(rule is not None for rule in rules)
    count = most if ruled else min(most, max(1, len(splits)))
    chosen: list[list[int]] = [[] for _ in range(count)]
    for at, rule in enumerate(rules):
        if rule is not None:
            chosen[rule % most].append(at)
    heap = [(sum(sizes[at] for at in places), number) for number, places in enumerate(chosen)]
    heapq.heapify(heap)
    held: set[tuple[str, int]] = set()
    free = [at for at, rule in enumerate(rules) if rule is None]
    for at in sorted(free, key=lambda at: -sizes[at]):
        split_id, passed = splits[at].split_id, []
        while (split_id, heap[0][1]) in held:
            passed.append(heapq.heappop(heap))
        load, number = heap[0]
        held.add((split_id, number))
        chosen[number].append(at)
        heapq.heapreplace(heap, (load + sizes[at], number))
        for each in passed:
            heapq.heappush(heap, each)
    return [[splits[at] for at in sorted(places)] for places in chosen if places]


def _sizes(splits: Sequence[S]) -> list[int]:
    for sizes in ([split.nbytes for split in splits], [split.rows for split in splits]):
        if None not in sizes:
            # One that says 0 is a split all the same.
            return [(size or 0) + 1 for size in sizes]
    return [1] * len(splits)


def cut(splits: Sequence[S], least: int, advance: Callable[[S, ReadLimit], S | None]) -> list[S]:
    """Cut `splits` until there are about `least`, as far as `advance` can cut them. All of them is the same.

    Of one split there are at most `least` pieces.

    The pieces of a split are as large as their share of all rows, or bytes; one whose size nobody knows is
    left whole.
    """
    if len(splits) >= least:
        return list(splits)
    by_rows = all(split.rows is not None for split in splits)
    sizes = [(split.rows if by_rows else split.nbytes) or 0 for split in splits]
    whole = sum(sizes)
    found: list[S] = []
    for rest, size in zip(splits, sizes, strict=True):
        pieces = -(-least * size // whole) if whole else 1
        share = max(1, -(-size // max(1, pieces)))
        limit = ReadLimit(rows=share) if by_rows else ReadLimit(nbytes=share)
        for _ in range(pieces - 1):
            front = advance(rest, limit)
            if front is None or front.stop == rest.stop:
                break
            found.append(front)
            rest = front.starting_at(front.stop).up_to(rest.stop)
        found.append(rest)
    return found
