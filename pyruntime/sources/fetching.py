"""`FetchingReader`: the reader of most sources. It runs split readers on fetchers and gives what they fetch.

Confined to the task's thread, the one that calls `start`, but for `close`. The threading models are those
of FLIP-27: one split at a time, one client for many splits, a thread for each split.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from threading import Lock
from typing import Any, Generic, TypeVar

from pillarbox.kernel import Handover, HandoverClosedError, WrongThreadError
from pillarbox.kernel.confined import described_thread
from pillarbox.mailbox.check import check_positive_int
from pillarbox.sources.fetcher import Fetcher, Found, Held, check_pauses
from pillarbox.sources.reader import Fetched, ReaderContext, SourceReader, SplitReader
from pillarbox.sources.split import Split
from pillarbox.task.moments import check_callable, check_duration

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)

MAX_BATCHES = 4
MAX_BYTES = 64 * 2**20
GRACE = 5.0
CLOSED = "the reader is closed"


class Threading(enum.Enum):
    """How the splits of a reader share clients and threads."""

    ONE_SPLIT_AT_A_TIME = "one split at a time"
    """One thread and one client, which reads one split after the other: files, tables."""
    MANY_SPLITS = "many splits"
    """One thread and one client, which reads all splits at the same time: the partitions of a log."""
    SPLIT_PER_THREAD = "a thread a split"
    """A thread and a client for each split, so that the task takes from each as it likes: shards."""


class _Lane(Generic[S]):
    """A fetcher and what comes from it. `held` is its only split, where each has a lane of its own."""

    __slots__ = ("fetcher", "handover", "held", "looked", "paused")

    def __init__(self, fetcher: Fetcher[S], handover: Handover, held: Held[S] | None) -> None:
        self.fetcher = fetcher
        self.handover = handover
        self.held = held
        self.looked = 0.0
        """How long its client had looked up to what was taken last."""
        self.paused = False


class FetchingReader(SourceReader[S]):
    """Reads splits through `SplitReader`s on threads that it owns.

    A fetched batch waits for the task in a hand-over; `poll` takes it out, and from then on the split stands
    behind it. So a snapshot needs no lock: it is what `poll` has given.

    make_split_reader: makes a split reader; called in the thread that will use it.
    threading: see `Threading`. A split reader must be able to pause splits for MANY_SPLITS only: with the
    others it is just not asked to fetch.
    max_batches, max_bytes: what may wait for the task, for each thread; one batch always may.
    grace: seconds that `close` waits for fetches that do not heed their wake-up. Their threads are then
    abandoned; they are daemons.

    Raises TypeError or ValueError for a bad argument. `poll` raises `ReadFailed`, which names the splits, for
    what a split reader has raised.
    """

    def __init__(
        self,
        context: ReaderContext,
        make_split_reader: Callable[[], SplitReader[S]],
        *,
        threading: Threading = Threading.ONE_SPLIT_AT_A_TIME,
        max_batches: int = MAX_BATCHES,
        max_bytes: int | None = MAX_BYTES,
        grace: float = GRACE,
    ) -> None:
        check_callable("make_split_reader", make_split_reader)
        if not isinstance(threading, Threading):
            raise TypeError(f"threading={threading!r}: must be one of {', '.join(map(str, Threading))}")
        check_positive_int("max_batches", max_batches)
        if max_bytes is not None:
            check_positive_int("max_bytes", max_bytes)
        self.context = context
        """Its place."""
        self.make_split_reader = make_split_reader
        """See the argument."""
        self.threading = threading
        """See the argument."""
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._grace = check_duration("grace", grace)
        self._held: dict[str, Held[S]] = {}
        self._lanes: list[_Lane[S]] = []
        self._turn = 0
        self._started = 0
        self._must_pause = False
        # Held where lanes come and go, as close may come from another thread. The list itself is replaced,
        # never changed.
        self._guard = Lock()
        # Fetchers that were told to end and may still be about it.
        self._ending: list[Fetcher[S]] = []
        self._future: Future[None] | None = None
        self._thread = 0
        self._closed = False

    # -- as a reader; the task's thread ------------------------------------------------------------

    def start(self) -> None:
        """Take the calling thread for the task's. Threads begin with the first split."""
        self._thread = threading.get_ident()

    def poll(self) -> Fetched | None:
        """The next rows that were fetched; None if there are none now.

        Raises `ReadFailed`; RuntimeError after `close`.
        """
        # spec: SplitFetch!Poll, SplitPerThread!Poll
        if threading.get_ident() != self._thread:
            self._raise_for_thread()
        lanes = self._lanes
        left = len(lanes)
        if not left:
            self._check_open()
        while left:
            self._turn = turn = (self._turn + 1) % len(lanes)
            lane = lanes[turn]
            if lane.paused:
                # spec: SplitPerThread!PollRaises, SplitPerThread!PassOver
                if lane.fetcher.failure is not None:
                    raise lane.fetcher.failure
                left -= 1
                continue
            try:
                found: Found | None = lane.handover.try_take()  # spec: SplitPerThread!Take
            except HandoverClosedError:
                raise RuntimeError(CLOSED) from None  # spec: SplitPerThread!PollEnds
            if found is None:
                left -= 1
                continue
            held, fetched = found.held, found.fetched
            held.came, lane.looked = found.came, found.looked
            # A split that was given again is held anew: what was fetched of the old one is not the new one's.
            if held.removed:
                continue
            if fetched.finished:
                self._held.pop(fetched.split_id, None)
                if lane.held is not None:
                    self._end(lane)
            else:
                held.position = fetched.position
                held.taken = True
            return fetched
        return None

    def looked(self, split_id: str) -> float:
        """Seconds in which the split's client has looked for its rows since `poll` gave some, and found none.

        Those of fetches that are behind what `poll` has given; so what was fetched and waits counts, and the
        time in which nothing is fetched, as too much waits, does not. 0 while the split is paused, waits for
        its turn, or is not there.
        """
        self._check_thread()
        held = self._held.get(split_id)
        lanes = self._lanes
        if held is None or not lanes:
            return 0.0
        lane: _Lane[S] = held.lane if held.lane is not None else lanes[0]
        turn = held.turn
        # In this order: what comes in between is waited for.
        looked = lane.fetcher.looked()
        if len(lane.handover):
            looked = lane.looked
        return 0.0 if turn is None else max(0.0, looked - max(held.came, turn))

    def require_pausing(self) -> None:
        """Have it be an error at the start that splits cannot be paused. Before the first split.

        Raises NotImplementedError, or `poll` raises `ReadFailed`, if a client with many splits has no
        `pause_or_resume_splits`.
        """
        self._must_pause = self.threading is Threading.MANY_SPLITS
        make = self.make_split_reader
        if self._must_pause and isinstance(make, type):
            check_pauses(make)

    def available(self) -> Future[Any] | None:
        """A future that is done when `poll` should be called again; None means now.

        Raises RuntimeError after `close`.
        """
        self._check_thread()
        future = self._future
        if future is None or future.done():
            future = self._future = Future()  # spec: SplitPerThread!Ask

        def wake(future: Future[None] = future) -> None:
            _set(future)  # spec: SplitPerThread!CallArmed

        # Behind the future: whoever closes, or fails, after this finds it.
        self._check_open()  # spec: SplitPerThread!AskLanes
        for lane in self._lanes:
            # spec: SplitPerThread!Arm
            if lane.paused:
                if lane.fetcher.failure is not None:
                    return None
            elif not lane.handover.arm_wakeup_consumer(wake):
                return None
        return future  # spec: SplitPerThread!Sleep, SplitPerThread!AskAgain

    def add_splits(self, splits: Sequence[S]) -> None:
        """Read these too. Raises ValueError for one that it has."""
        self._check_thread()
        self._check_open()
        new: dict[str, Held[S]] = {}
        for split in splits:
            if split.split_id in self._held or split.split_id in new:
                raise ValueError(f"split {split.split_id!r}: the reader has it already")
            new[split.split_id] = Held(split)  # spec: SplitPerThread!AddSplits
        self._held.update(new)
        added = list(new.values())
        if self.threading is Threading.SPLIT_PER_THREAD:
            with self._guard:
                self._ending = [fetcher for fetcher in self._ending if not fetcher.join(0.0)]
            for held in added:
                self._open_lane([held], held)
        elif added and self._lanes:
            self._lanes[0].fetcher.add(added)
        elif added:
            self._open_lane(added, None)
        self._poke()

    def remove_splits(self, split_ids: Collection[str]) -> None:
        """Read these no more; `poll` gives nothing of them. Those that it does not have are passed over."""
        self._check_thread()
        removed = [self._held.pop(split_id) for split_id in split_ids if split_id in self._held]
        for held in removed:
            held.removed = True
        if self.threading is Threading.SPLIT_PER_THREAD:
            for lane in [lane for lane in self._lanes if lane.held in removed]:
                self._end(lane)  # spec: SplitPerThread!RemoveSplits
        elif removed:
            for lane in self._lanes:
                lane.fetcher.remove([held.split.split_id for held in removed])

    def splits(self) -> list[S]:
        """The splits that are not finished, each from where the rows end that `poll` has given."""
        self._check_thread()
        return [
            held.split.starting_at(held.position) if held.taken else held.split
            for held in self._held.values()
        ]

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Give nothing of the splits `pause`, but what was fetched already, until they are in `resume`.

        Those that it does not have are passed over.
        """
        self._check_thread()
        pause = [split_id for split_id in pause if split_id in self._held]
        resume = [split_id for split_id in resume if split_id in self._held]
        if not pause and not resume:
            return
        if self.threading is not Threading.SPLIT_PER_THREAD:
            for lane in self._lanes:
                lane.fetcher.pause_or_resume(pause, resume)
            return
        for lane in self._lanes:
            assert lane.held is not None
            split_id = lane.held.split.split_id
            if split_id in pause or split_id in resume:
                # spec: SplitPerThread!Pause, SplitPerThread!Resume
                lane.paused = split_id in pause and split_id not in resume
                lane.fetcher.pause_or_resume(
                    [split_id] if lane.paused else [], [] if lane.paused else [split_id]
                )
        self._poke()

    def close(self) -> None:
        """End the threads: wake what they fetch, and wait for them, `grace` seconds in all. Idempotent.

        Any thread. A thread that does not end is logged by its name and left alone.
        """
        with self._guard:
            if self._closed:
                return
            self._closed = True  # spec: SplitPerThread!Close
            lanes, self._lanes = self._lanes, []
            ending, self._ending = self._ending, []
        for lane in lanes:
            lane.fetcher.close()  # spec: SplitPerThread!CloseLane
            ending.append(lane.fetcher)
        self._poke()  # spec: SplitPerThread!ClosePokes
        deadline = time.monotonic() + self._grace
        for fetcher in ending:
            if not fetcher.join(max(0.0, deadline - time.monotonic())):
                log.warning(
                    "%s has not ended within %g s of its wake-up; it goes on as a daemon, and nothing that "
                    "it fetches is read",
                    fetcher.name,
                    self._grace,
                )

    # -- inside --------------------------------------------------------------------------------------

    def _open_lane(self, splits: Sequence[Held[S]], held: Held[S] | None) -> None:
        handover = Handover(self._max_batches, self._max_bytes)
        fetcher = Fetcher(
            f"pillarbox-fetch-{self.context.subtask}-{self._started}",
            self.make_split_reader,
            handover,
            one_at_a_time=self.threading is not Threading.MANY_SPLITS,
            must_pause=self._must_pause,
            failed=self._poke,
        )
        self._started += 1
        lane = _Lane(fetcher, handover, held)
        if held is not None:
            held.lane = lane
        fetcher.add(splits)
        # spec: SplitPerThread!Open
        with self._guard:
            self._check_open()
            self._lanes = [*self._lanes, lane]
            fetcher.start()

    def _end(self, lane: _Lane[S]) -> None:
        with self._guard:
            if self._closed:
                return
            self._lanes = [each for each in self._lanes if each is not lane]
            self._ending.append(lane.fetcher)
        lane.fetcher.close()

    def _poke(self) -> None:
        """Have whoever waits ask again: something has changed. Any thread."""
        # It stays where it is: whoever took it away might take one that was made since it was read.
        future = self._future  # spec: SplitPerThread!PokeReads
        if future is not None:
            _set(future)  # spec: SplitPerThread!PokeSets

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(CLOSED)

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            self._raise_for_thread()

    def _raise_for_thread(self) -> None:
        if not self._thread:
            raise RuntimeError("the reader was not started: call start() first")
        raise WrongThreadError(described_thread(self._thread), described_thread(threading.get_ident()))


def _set(future: Future[None]) -> None:
    # Several threads may come at the same time.
    try:
        future.set_result(None)
    except InvalidStateError:
        return


def check_can_pause(reader: SourceReader[Any]) -> None:
    """NotImplementedError for a reader that cannot pause splits, as far as that can be known yet."""
    check_pauses(type(reader))
    require_pausing: Callable[[], None] | None = getattr(reader, "require_pausing", None)
    if require_pausing is not None:
        require_pausing()
