"""A fetcher: one thread that runs one `SplitReader` and hands over what it fetches.

Made, ordered about and closed by one thread, the task's; what it hands over is taken by that thread too. The
idea is Flink's `SplitFetcher` (FLIP-27). There is no lock for checkpoints: where a split stands is settled
when the task thread takes its rows, not when they are fetched.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from pillarbox.kernel import Handover, PillarboxError
from pillarbox.redaction import DEFAULT
from pillarbox.sources.contract import ReaderContract
from pillarbox.sources.reader import Fetched, Records, SourceReader, SplitReader, SplitsAdded, SplitsRemoved
from pillarbox.sources.split import Split

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)

SHOWN = 5
"""Splits that an error names."""
REMEMBERED = 10_000
"""Splits that were removed and of which a client may still give rows."""


class ReadFailed(PillarboxError):
    """Reading these splits has failed; `__cause__` is what the reader has raised. Pickles."""

    def __init__(self, split_ids: Sequence[str], what: str) -> None:
        self.split_ids = tuple(split_ids)
        self.what = what
        super().__init__(self.split_ids, what)

    def __str__(self) -> str:
        named = ", ".join(map(repr, self.split_ids[:SHOWN]))
        more = len(self.split_ids) - SHOWN
        if more > 0:
            named += f" and {more} more"
        of = (
            f"split{'s'[: len(self.split_ids) != 1]} {named}" if named else "a source, with no split at hand,"
        )
        return f"reading {of} failed: {self.what}"


class Held(Generic[S]):
    """A split that a reader has, and where it stands. Each field is written by one thread only."""

    __slots__ = ("came", "lane", "position", "reached", "removed", "split", "taken", "turn")

    def __init__(self, split: S) -> None:
        self.split = split
        self.position: Any = None
        """Where the rows end that `poll` has given, once `taken`. The task thread's."""
        self.taken = False
        self.removed = False
        """Whether what was fetched of it is to be dropped. The task thread's."""
        self.lane: Any = None
        """Where it comes from, if nothing else does. The task thread's."""
        self.came = 0.0
        """How long its client had looked when it found the rows that `poll` gave last. The task thread's."""
        self.reached: Any = split.start
        """Where the rows end that were fetched. The fetcher's."""
        self.turn: float | None = None
        """How long its client had looked when it began to look for this split; None: it does not. The
        fetcher's."""


class Found(NamedTuple):
    """What goes through the hand-over: rows, and how long their client has looked for rows in all."""

    held: Held[Any]
    fetched: Fetched
    came: float
    """Until these were there."""
    looked: float
    """Until all was there that comes up to these: less, if others of the same fetch follow."""


class Fetcher(Generic[S]):
    """Runs a `SplitReader` in a thread of its own: take orders, fetch, hand over, and again.

    Made and used by one thread, the task's. name: of the thread. make_split_reader: called in that thread.
    handover: gets each `Found`, and the failure. one_at_a_time: the reader is given the next split when it
    has finished the one before, and is never asked to pause one. must_pause: it is a failure at the start if
    the reader could not pause one. failed: called when there is a failure, in the fetcher's thread.

    A fetch is woken when there is an order for it. What it has got is handed over all the same.
    """

    def __init__(
        self,
        name: str,
        make_split_reader: Callable[[], SplitReader[S]],
        handover: Handover,
        *,
        one_at_a_time: bool,
        must_pause: bool = False,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._make = make_split_reader
        self._must_pause = must_pause
        self._failed = failed
        self.failure: ReadFailed | None = None
        """What the hand-over raises, once what was fetched before has been taken. Any thread."""
        self._handover = handover
        self._one_at_a_time = one_at_a_time
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._changed = threading.Condition(threading.Lock())
        # Guarded by `_changed`: what is to be done before the next fetch.
        self._orders: list[Callable[[SplitReader[S]], None]] = []
        self._closing = False
        self._fetching = False
        # Held around every wake-up, so that none comes to a reader that is closed.
        self._waking = threading.Lock()
        self._reader: SplitReader[S] | None = None
        # The thread's own.
        self._waiting: deque[Held[S]] = deque()
        self._active: dict[str, Held[S]] = {}
        # In the order of their removal.
        self._removed: dict[str, None] = {}
        self._paused: set[str] = set()
        self._readable = False
        # Seconds in which the reader has fetched; and for the task thread: up to when all of it is in the
        # hand-over, and when the fetch at hand began.
        self._total = 0.0
        self._looking: tuple[float, float | None] = (0.0, None)

    @property
    def name(self) -> str:
        """The name of its thread."""
        return self._thread.name

    # -- for the task thread ---------------------------------------------------------------------

    def start(self) -> None:
        """Begin. Once."""
        self._thread.start()

    def add(self, splits: Sequence[Held[S]]) -> None:
        """Read these splits too."""
        self._order(partial(self._take_up, splits))  # spec: SplitFetch!AddSplits

    def remove(self, split_ids: Collection[str]) -> None:
        """Read these splits no more."""
        self._order(partial(self._let_go, tuple(split_ids)))  # spec: SplitFetch!RemoveSplits

    def pause_or_resume(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Fetch nothing of the splits `pause` until they are in `resume`."""
        # spec: SplitFetch!Pause, SplitFetch!Resume
        self._order(partial(self._pause, tuple(pause), tuple(resume)))

    def close(self) -> None:
        """Have it end: nothing that it fetches from now on is handed over. Does not wait. Idempotent."""
        # spec: SplitFetch!Close
        with self._changed:
            self._closing = True
            self._changed.notify()
            fetching = self._fetching
        # A put that waits for room ends with this.
        self._handover.close()
        if fetching:
            self._wake_up()

    def looked(self) -> float:
        """Seconds in which the client has looked for rows and found nothing but what is in the hand-over.

        The time in which it waits for room there is none of them. Any thread.
        """
        looked, began = self._looking
        return looked if began is None else looked + max(0.0, time.monotonic() - began)

    def join(self, seconds: float) -> bool:
        """Wait for its end so long; whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(min(seconds, threading.TIMEOUT_MAX))
        return not self._thread.is_alive()

    def _order(self, order: Callable[[SplitReader[S]], None]) -> None:
        with self._changed:
            self._orders.append(order)
            self._changed.notify()
            fetching = self._fetching
        if fetching:
            self._wake_up()

    def _wake_up(self) -> None:
        # It may have come back meanwhile: then the next fetch is woken for nothing, which does no harm.
        with self._waking:
            reader = self._reader
            if reader is None:
                return
            try:
                reader.wake_up()  # spec: SplitFetch!WakeUp, SplitPerThread!WakeUp
            except Exception:
                log.exception("the wake_up of the reader of %s raised", self.name)

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._make_and_fetch()
        except BaseException as error:
            # Before the client is closed, which may take its time, or hang.
            self._fail(error)
        # spec: SplitFetch!End, SplitPerThread!End
        with self._waking:
            reader, self._reader = self._reader, None
        if reader is not None:
            try:
                reader.close()
            except Exception:
                log.exception("closing the split reader of %s raised", self.name)

    def _make_and_fetch(self) -> None:
        self._reader = reader = self._make()  # spec: SplitPerThread!Make
        if self._must_pause:
            check_pauses(type(reader))
        self._fetch_all(reader)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            closing = self._closing
        if closing:
            log.info("fetcher %s ended with an error after it was closed", self.name, exc_info=error)
            return
        split_ids = [*self._active, *(held.split.split_id for held in self._waiting)]
        failure = ReadFailed(split_ids, f"{type(error).__name__}: {DEFAULT.told(error)}")
        # Spark prints it too.
        failure.__cause__ = DEFAULT.chain(error)
        # spec: SplitFetch!FetchFails, SplitPerThread!FetchFails, SplitPerThread!FailHandover
        self.failure = failure
        self._handover.fail(failure)
        self._failed()

    def _fetch_all(self, reader: SplitReader[S]) -> None:
        handover, contract = self._handover, ReaderContract(reader, "fetch")
        while self._prepare(reader):
            before, began = self._total, time.monotonic()
            self._looking = (before, began)
            # spec: SplitPerThread!Fetch, SplitPerThread!FetchIsWoken
            fetched_now = reader.fetch()  # spec: SplitFetch!Fetch
            self._total = total = before + time.monotonic() - began
            self._looking = (before, None)
            # Without the lock: whoever sees the old value wakes the next fetch, for nothing.
            self._fetching = False
            checked = self._checked(contract, fetched_now)
            left = len(checked)
            for held, fetched in checked:
                left -= 1
                # spec: SplitFetch!HandOver, SplitPerThread!HandOver, SplitPerThread!PutRefused
                found = Found(held, fetched, total, before if left else total)
                if not handover.put(found, approximate_nbytes(fetched.records)):
                    return

    def _checked(self, contract: ReaderContract, fetched_now: Any) -> list[tuple[Held[S], Fetched]]:
        """What is to be handed over. Before any of it is: one that breaks the contract loses its place."""
        contract.check_list(fetched_now)
        checked = []
        for fetched in fetched_now:
            contract.check_kind(fetched)
            held = self._active.get(fetched.split_id)
            if held is None:
                if fetched.split_id not in self._removed:
                    contract.refuse_unknown(fetched.split_id)
                continue
            contract.check(fetched, held.split, held.reached)
            if fetched.finished:
                del self._active[fetched.split_id]
                self._paused.discard(fetched.split_id)
                self._readable = False
            else:
                held.reached = fetched.position
            checked.append((held, fetched))
        return checked

    def _prepare(self, reader: SplitReader[S]) -> bool:
        """Do what was ordered, and wait until there is something to fetch; False: end."""
        while True:
            if not self._readable:
                self._readable = self._choose(reader)
            with self._changed:
                while not self._orders and not self._closing:
                    if self._readable:
                        self._fetching = True  # spec: SplitFetch!GoFetch, SplitPerThread!GoFetch
                        return True
                    self._changed.wait()
                if self._closing:
                    return False
                orders, self._orders = self._orders, []
            for order in orders:
                order(reader)  # spec: SplitFetch!TakeUp, SplitPerThread!TakeUp
            self._readable = False

    def _choose(self, reader: SplitReader[S]) -> bool:
        """Whether there is a split to fetch from. One at a time: go to the next where that one must wait."""
        if not self._active.keys() <= self._paused:
            return True
        waiting = next((held for held in self._waiting if held.split.split_id not in self._paused), None)
        if waiting is None:
            return False
        # spec: SplitFetch!Choose, Alignment!Choose
        # What is paused goes back into the queue, to where it was read: or the splits behind it would wait
        # for it while it waits for them.
        for split_id, held in self._active.items():
            self._remember([split_id])
            reader.handle_splits_changes(SplitsRemoved((split_id,)))
            held.turn = None
            self._waiting.appendleft(held)
        self._waiting.remove(waiting)
        waiting.turn = self._total
        self._active = {waiting.split.split_id: waiting}
        reader.handle_splits_changes(SplitsAdded((_rest(waiting),)))
        return True

    # -- orders, in the thread -------------------------------------------------------------------

    def _take_up(self, splits: Sequence[Held[S]], reader: SplitReader[S]) -> None:
        # What was said of an earlier split of this name is not said of this one.
        added = {held.split.split_id for held in splits}
        for split_id in added:
            self._removed.pop(split_id, None)
        self._paused -= added
        if self._one_at_a_time:
            self._waiting.extend(splits)
            return
        for held in splits:
            self._active[held.split.split_id] = held
            held.turn = self._total
        reader.handle_splits_changes(SplitsAdded(tuple(held.split for held in splits)))

    def _let_go(self, split_ids: Iterable[str], reader: SplitReader[S]) -> None:
        gone = frozenset(split_ids)
        self._paused -= gone
        self._waiting = deque(held for held in self._waiting if held.split.split_id not in gone)
        active = tuple(split_id for split_id in self._active if split_id in gone)
        if active:
            self._remember(active)
            for split_id in active:
                del self._active[split_id]
            reader.handle_splits_changes(SplitsRemoved(active))

    def _remember(self, removed: Iterable[str]) -> None:
        self._removed.update(dict.fromkeys(removed))
        while len(self._removed) > REMEMBERED:
            del self._removed[next(iter(self._removed))]

    def _pause(self, pause: Collection[str], resume: Collection[str], reader: SplitReader[S]) -> None:
        # Of those that have been finished meanwhile nothing is kept.
        here = {held.split.split_id for held in self._waiting}
        self._paused.update(each for each in pause if each in self._active or each in here)
        self._paused.difference_update(resume)
        if self._one_at_a_time:
            return
        paused = [split_id for split_id in pause if split_id in self._active]
        resumed = [split_id for split_id in resume if split_id in self._active]
        for split_id in paused:
            self._active[split_id].turn = None
        for split_id in resumed:
            self._active[split_id].turn = self._total
        if paused or resumed:
            reader.pause_or_resume_splits(paused, resumed)


def _rest(held: Held[S]) -> S:
    return held.split if held.reached == held.split.start else held.split.starting_at(held.reached)


def check_pauses(kind: type[SplitReader[Any]] | type[SourceReader[Any]]) -> None:
    """Raise NotImplementedError if readers of this class cannot pause splits. Any thread."""
    cannot = (SplitReader.pause_or_resume_splits, SourceReader.pause_or_resume_splits)
    if kind.pause_or_resume_splits in cannot:
        raise NotImplementedError(f"{kind.__name__} cannot pause splits, as max_drift needs it")


def approximate_nbytes(records: Records) -> int:
    """Bytes that rows hold: an Arrow batch knows; others are judged by their first rows. Any thread."""
    nbytes = getattr(records, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    if not records:
        return 0
    sampled = 0
    for row in islice(records, 2):
        sampled += sys.getsizeof(row)
        if isinstance(row, tuple):
            sampled += sum(map(sys.getsizeof, row))
    return sampled * len(records) // min(2, len(records))
