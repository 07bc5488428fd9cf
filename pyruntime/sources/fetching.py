"""`FetchingReader`: the reader of most sources. It runs split readers on threads and gives what they fetch.

Confined to the task's thread, the one that calls `start`, but for `close`. The threading models are those
of FLIP-27: one split at a time, one client for many splits, a thread for each split. A `Fetcher` is one
thread with one client, as Flink's `SplitFetcher`; the reader has one of them, or one for each split.
"""

# There is no lock for checkpoints: where a split stands is settled when the task's thread takes its rows
# out of the hand-over, not when they are fetched. Fields of a split and of a fetcher have one thread that
# writes them; the other one reads what was so a moment ago.
#
# Alternatives, and why they are not here. A lock around each fetch, as Flink's old `SourceFunction` has it,
# makes a checkpoint wait for the service. Client coroutines on the task's own event loop would need no
# threads, but the clients of Kafka, Arrow and most databases block, and one that decodes for 50 ms would
# hold up every call of the operator behind it. A pool with a thread for each request cannot keep a client
# that belongs to one thread (Kafka's consumer, SQLite), and forgets what a client has prefetched.

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from threading import TIMEOUT_MAX, Lock
from typing import Any, Generic, TypeVar

from pillarbox.kernel import Handover, HandoverClosedError, PillarboxError, WrongThreadError
from pillarbox.kernel.confined import described_thread
from pillarbox.redaction import DEFAULT
from pillarbox.sources.reader import (
    Doorbell,
    Fetched,
    Progress,
    ReaderContext,
    ReaderContract,
    SourceReader,
    SplitReader,
    SplitsAdded,
    approximate_nbytes,
    rest_of,
)
from pillarbox.sources.split import Split
from pillarbox.thread_start import start_thread
from pillarbox.validate import check_callable, check_duration, check_positive_int

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)

MAX_BATCHES = 4
MAX_BYTES = 64 * 2**20
CLOSE_TIMEOUT_S = 5.0
CLOSED = "the reader is closed"
STILL_FETCHES = (
    "%s has not ended within %g s of its wake-up; it goes on as a daemon, and nothing that it fetches is read"
)
MAX_SPLITS_NAMED = 5
"""Splits that an error names."""


class ReadFailed(PillarboxError):
    """Reading these splits has failed; `__cause__` is what the reader has raised. Pickles."""

    def __init__(self, split_ids: Sequence[str], what: str) -> None:
        self.split_ids = tuple(split_ids)
        self.what = what
        super().__init__(self.split_ids, what)

    def __str__(self) -> str:
        count = len(self.split_ids)
        if not count:
            return f"reading a source, with no split at hand, failed: {self.what}"
        named = ", ".join(map(repr, self.split_ids[:MAX_SPLITS_NAMED]))
        more = f" and {count - MAX_SPLITS_NAMED} more" if count > MAX_SPLITS_NAMED else ""
        return f"reading split{'s' * (count > 1)} {named}{more} failed: {self.what}"


class Threading(enum.Enum):
    """The ways in which the splits of a reader share clients and threads."""

    ONE_SPLIT_AT_A_TIME = "one split at a time"
    """One thread and one client, which reads one split after the other: files, tables."""
    MANY_SPLITS = "many splits"
    """One thread and one client, which reads all splits at the same time: the partitions of a log."""
    SPLIT_PER_THREAD = "a thread a split"
    """A thread and a client for each split, so that the task takes from each as it likes: shards."""


class _Held(Progress[S]):
    """A split that a reader has. `position` is where the rows end that were fetched.

    The fetcher's thread writes that one, `stopped` and `turn`, the task's thread the others.
    """

    def __init__(self, split: S) -> None:
        super().__init__(split)
        self.fetcher: Fetcher[S]
        self.given: Any = split.start
        """The position behind the rows that `poll` has given."""
        self.paused = False
        """True if `poll` gives nothing of it."""
        self.aside = 0
        """Batches of it that were taken out of the hand-over while it was paused."""
        self.stopped = False
        """True if its client was told to fetch nothing of it."""
        self.came = 0.0
        """The seconds that its client had looked when it found the rows that `poll` gave last."""
        self.turn: float | None = None
        """The seconds that its client had looked when it began to look for this split; None: it does not."""


Found = tuple[_Held[Any], Fetched, float, float]
"""Rows in a hand-over, how long their client had looked for rows in all when these were there, and when all
was there that comes up to these: less, if others of the same fetch follow."""


class Fetcher(Generic[S]):
    """Runs a `SplitReader` of `owner` in a thread of its own: do what was told, fetch, hand over, and again.

    Made and used by one thread, the task's. number: of the thread, in its name. bell: rung when there is a
    failure. Where the owner has one split at a time, the split reader is given the next one when it has
    finished the one before.

    A fetch is woken when there is something told. What it has got is handed over all the same.

    What comes of a split that is paused is set aside, and is first when the split goes on. Where the client
    has many splits at the same time, it is told to fetch nothing of that one until then. Otherwise nothing
    else is taken, so that the fetcher waits for room.
    """

    def __init__(self, owner: FetchingReader[S], number: int, handover: Handover, bell: Doorbell) -> None:
        name = f"pillarbox-fetch-{owner.context.subtask}-{number}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.handover = handover
        self.looked_until = 0.0
        """The seconds that its client had looked up to what was taken last."""
        self._owner = owner
        self._bell = bell
        self._has_many = owner.threading is Threading.MANY_SPLITS
        # The task's.
        self._aside: list[Found] = []
        # Guarded by `_changed`: what the thread was told, and whether it is in a fetch, or about to be.
        self._changed = threading.Condition(threading.Lock())
        self._told = False
        self._new: list[_Held[S]] = []
        self._closing = False
        self._fetching = False
        # The thread's own.
        self._reader: SplitReader[S] | None = None
        self._waiting: deque[_Held[S]] = deque()
        self._active: dict[str, _Held[S]] = {}
        # Seconds in which the reader has fetched; and for the task's thread: up to when all of it is in the
        # hand-over, and when the fetch at hand began.
        self._total = 0.0
        self._looking: tuple[float, float | None] = (0.0, None)

    # -- for the task's thread -------------------------------------------------------------------

    def tell(self, new: Sequence[_Held[S]] = ()) -> None:
        """Read these splits too, and heed which of the others are paused."""
        for held in new:
            held.fetcher = self
        with self._changed:
            self._told = True
            self._new.extend(new)
            self._changed.notify()
            self._wake_up()

    def take(self) -> Found | None:
        """The next rows of a split that is not paused; None if there are none. Raises what is behind them."""
        for at, found in enumerate(self._aside):
            held = found[0]
            if not held.paused:
                # spec: SplitFetch!PollAside, SplitPerThread!TakeAside
                del self._aside[at]
                held.aside -= 1
                if self._has_many and not held.aside:
                    self.tell()
                return found
        while self._has_many or not self._aside:
            # spec: SplitPerThread!PollRaises
            taken: Found | None = self.handover.try_take()
            if taken is None or not taken[0].paused:
                return taken
            # spec: SplitFetch!SetAside, SplitPerThread!SetAside
            taken[0].aside += 1
            self._aside.append(taken)
        return None

    def arm(self) -> bool:
        """Have the bell rung when `take` has something; False if it has now."""
        if any(not held.paused for held, *_ in self._aside):
            return False
        if self._aside and not self._has_many:
            return True
        return self.handover.arm_wakeup_consumer(self._bell.ring)

    def looked(self) -> float:
        """Seconds in which the client has looked for rows and found nothing but what is in the hand-over.

        The time in which it waits for room there is none of them.
        """
        looked, began = self._looking
        return looked if began is None else looked + max(0.0, self._owner.clock() - began)

    def close(self) -> None:
        """Have it end: nothing that it fetches from now on is handed over. Does not wait. Any thread."""
        # spec: SplitFetch!Close
        with self._changed:
            self._closing = True
            self._changed.notify()
        # A put that waits for room ends with this.
        self.handover.close()
        with self._changed:
            self._wake_up()

    def _wake_up(self) -> None:
        # Under the lock, so that none comes to a reader that is closed. It may have come back meanwhile: then
        # the next fetch is woken for nothing, which does no harm.
        if self._fetching and self._reader is not None:
            try:
                self._reader.wake_up()  # spec: SplitFetch!WakeUp, SplitPerThread!WakeUp
            except Exception:
                log.exception("the wake_up of the reader of %s raised", self.thread.name)

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._reader = reader = self._owner.make_split_reader()  # spec: SplitPerThread!Make
            if self._has_many and self._owner.is_aligned:
                # For nothing, but that one which cannot pause splits says so now.
                reader.pause_or_resume_splits((), ())
            self._fetch_all(reader)
        except BaseException as error:
            # Before the client is closed, which may take its time, or hang.
            self._fail(error)
        # spec: SplitFetch!End, SplitPerThread!End
        with self._changed:
            self._fetching = False
        if self._reader is not None:
            try:
                self._reader.close()
            except Exception:
                log.exception("closing the split reader of %s raised", self.thread.name)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            closing = self._closing
        if closing:
            log.info("%s ended with an error after it was closed", self.thread.name, exc_info=error)
            return
        split_ids = [*self._active, *(held.split.split_id for held in self._waiting)]
        failure = ReadFailed(split_ids, f"{type(error).__name__}: {DEFAULT.told(error)}")
        # Spark prints it too.
        failure.__cause__ = DEFAULT.sealed(error)
        # spec: SplitFetch!FetchFails, SplitPerThread!FetchFails, SplitPerThread!FailHandover
        self.handover.fail(failure)

    def _fetch_all(self, reader: SplitReader[S]) -> None:
        contract = ReaderContract(reader, "fetch")
        while self._prepare(reader):
            before, began = self._total, self._owner.clock()
            self._looking = (before, began)
            # spec: SplitPerThread!Fetch, SplitPerThread!FetchIsWoken
            fetched_now = reader.fetch()  # spec: SplitFetch!Fetch
            self._total = total = before + self._owner.clock() - began
            self._looking = (before, None)
            # Without the lock: whoever sees the old value wakes the next fetch, for nothing.
            self._fetching = False
            checked = self._checked(contract, fetched_now)
            left = len(checked)
            for held, fetched in checked:
                left -= 1
                # spec: SplitFetch!HandOver, SplitPerThread!HandOver, SplitPerThread!PutRefused
                found = (held, fetched, total, before if left else total)
                if not self.handover.put(found, approximate_nbytes(fetched.records)):
                    return

    def _checked(
        self, contract: ReaderContract, fetched_now: Sequence[Fetched]
    ) -> list[tuple[_Held[S], Fetched]]:
        """Check all before any is handed over: what breaks the contract is not to lose its place."""
        contract.check_list(fetched_now)
        checked = []
        for fetched in fetched_now:
            held = contract.check(fetched, self._active)
            if fetched.finished:
                del self._active[fetched.split_id]
            else:
                held.position = fetched.position
            checked.append((held, fetched))
        return checked

    def _prepare(self, reader: SplitReader[S]) -> bool:
        """Do what was told, and wait until there is something to fetch; False: end."""
        while True:
            if not self._active and self._waiting:
                # spec: SplitFetch!Choose
                self._take_up([self._waiting.popleft()], reader)
            is_readable = any(not held.stopped for held in self._active.values())
            with self._changed:
                while not (is_readable or self._told or self._closing):
                    self._changed.wait()
                if self._closing:
                    return False
                if not self._told:
                    self._fetching = True  # spec: SplitFetch!GoFetch, SplitPerThread!GoFetch
                    return True
                self._told = False
                new, self._new = self._new, []
            # spec: SplitFetch!TakeUp
            if not self._has_many:
                self._waiting.extend(new)
                continue
            if new:
                self._take_up(new, reader)
            self._pause_or_resume(reader)

    def _pause_or_resume(self, reader: SplitReader[S]) -> None:
        """Have the client fetch nothing of what is paused, nor of what was set aside and is still there."""
        pause, resume = list[str](), list[str]()
        for split_id, held in self._active.items():
            stop = held.paused or held.aside > 0
            if stop != held.stopped:
                held.stopped, held.turn = stop, None if stop else self._total
                (pause if stop else resume).append(split_id)
        if pause or resume:
            reader.pause_or_resume_splits(pause, resume)

    def _take_up(self, new: Sequence[_Held[S]], reader: SplitReader[S]) -> None:
        for held in new:
            self._active[held.split.split_id] = held
            held.turn = self._total
        reader.handle_splits_changes(SplitsAdded(tuple(held.split for held in new)))


class FetchingReader(SourceReader[S]):
    """Reader of a task that runs `SplitReader`s on its own threads.

        >>> from pillarbox.sources import SplitReader
        >>> from pillarbox.sources.fetching import FetchingReader, Threading
        >>> from pillarbox.sources.reader import ReaderContext
        >>> class Client(SplitReader):
        ...     def handle_splits_changes(self, change): ...
        ...     def fetch(self):
        ...         return []
        >>> reader = FetchingReader(ReaderContext(0), Client, threading=Threading.MANY_SPLITS)
        >>> reader.start()
        >>> reader.splits(), reader.close()
        ([], None)

    A fetched batch waits for the task in a hand-over; `poll` removes it, and the split's position is then
    after it. So a snapshot needs no lock: it is the state of `poll`.

    make_split_reader: makes a split reader; called in the thread that will use it.
    threading: see `Threading`. A split reader must be able to pause splits for MANY_SPLITS only: with the
        others its `fetch` is not called meanwhile.
    max_batches, max_bytes: limits of the batches that wait for the task, for each thread; one batch always
        may.
    grace: seconds that `close` waits for fetches that ignore their wake-up. Their threads are then
        abandoned; they are daemons. clock: seconds, monotonic, for the time that clients have looked.

    On the mailbox thread. Raises TypeError or ValueError for a bad argument. `poll` raises `ReadFailed`,
    which names the splits, for an error of a split reader.
    """

    def __init__(
        self,
        context: ReaderContext,
        make_split_reader: Callable[[], SplitReader[S]],
        *,
        threading: Threading = Threading.ONE_SPLIT_AT_A_TIME,
        max_batches: int = MAX_BATCHES,
        max_bytes: int | None = MAX_BYTES,
        grace: float = CLOSE_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
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
        self.clock = clock
        """See the argument."""
        self._room = (max_batches, max_bytes)
        self._grace = min(check_duration("grace", grace), TIMEOUT_MAX)
        self._held: dict[str, _Held[S]] = {}
        # Held where fetchers come and go, as close may come from another thread. The list itself is replaced,
        # never changed.
        self._guard = Lock()
        self._fetchers: list[Fetcher[S]] = []
        # Those that were told to end and may still be about it.
        self._ending: list[Fetcher[S]] = []
        self._closed = False
        self._bell = Doorbell()
        self._turn = 0
        self._started = 0
        self.is_aligned = False
        """True if splits are going to be paused."""
        self._thread = 0

    # -- as a reader; the task's thread ------------------------------------------------------------

    def start(self) -> None:
        """Take the calling thread for the task's. Threads begin with the first split."""
        self._thread = threading.get_ident()

    def poll(self) -> Fetched | None:
        """The next rows that were fetched, of each thread in turn; None if there are none now.

        Raises `ReadFailed`; RuntimeError after `close`.
        """
        # spec: SplitFetch!Poll, SplitPerThread!Poll
        self._check_thread()
        fetchers = self._fetchers
        left = len(fetchers)
        if not left:
            self._check_open()
        while left:
            self._turn = turn = (self._turn + 1) % len(fetchers)
            fetcher = fetchers[turn]
            try:
                found = fetcher.take()  # spec: SplitPerThread!Take
            except HandoverClosedError:
                raise RuntimeError(CLOSED) from None  # spec: SplitPerThread!PollEnds
            if found is None:
                left -= 1
                continue
            held, fetched, came, looked = found
            held.came, fetcher.looked_until = came, looked
            if fetched.finished:
                self._held.pop(fetched.split_id, None)
                if self.threading is Threading.SPLIT_PER_THREAD:
                    self._end(fetcher)
            else:
                held.given = fetched.position
            return fetched
        return None

    def looked(self, split_id: str) -> float:
        """Seconds in which the split's client has looked for its rows since `poll` gave some, and found none.

        Those of fetches that are behind what `poll` has given; so what was fetched and waits counts, and the
        time in which nothing is fetched, as too much waits, does not. 0 while the client was told to
        pause the split, while it waits for its turn, or is not there.
        """
        self._check_thread()
        held = self._held.get(split_id)
        if held is None:
            return 0.0
        turn, fetcher = held.turn, held.fetcher
        # In this order: what comes in between is waited for.
        looked = fetcher.looked()
        if len(fetcher.handover):
            looked = fetcher.looked_until
        return 0.0 if turn is None else max(0.0, looked - max(held.came, turn))

    def available(self) -> Future[Any] | None:
        """A future that is done when `poll` should be called again; None means now.

        Raises RuntimeError after `close`.
        """
        self._check_thread()
        future = self._bell.future()
        # Behind the future: whoever closes, or fails, after this finds it.
        self._check_open()  # spec: SplitPerThread!AskLanes
        for fetcher in self._fetchers:
            if not fetcher.arm():  # spec: SplitPerThread!Arm
                return None
        return future  # spec: SplitPerThread!Sleep, SplitPerThread!AskAgain

    def add_splits(self, splits: Sequence[S]) -> None:
        """Read these too. Raises ValueError for one that it has."""
        self._check_thread()
        self._check_open()
        new: dict[str, _Held[S]] = {}
        for split in splits:
            if split.split_id in self._held or split.split_id in new:
                raise ValueError(f"split {split.split_id!r}: the reader has it already")
            new[split.split_id] = _Held(split)  # spec: SplitPerThread!AddSplits
        self._held.update(new)
        added, fetchers = list(new.values()), self._fetchers
        if self.threading is Threading.SPLIT_PER_THREAD:
            for held in added:
                self._open([held])
        elif added and fetchers:
            fetchers[0].tell(added)  # spec: SplitFetch!AddSplits
        elif added:
            self._open(added)
        self._bell.ring()

    def splits(self) -> list[S]:
        """The splits that are not finished, each from where the rows end that `poll` has given."""
        self._check_thread()
        return [rest_of(held.split, held.given) for held in self._held.values()]

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Give nothing of the splits `pause` until they are in `resume`.

        Those that it does not have are passed over. Where a thread reads one split at a time, those behind
        one that is paused wait too.
        """
        self._check_thread()
        self.is_aligned = True
        for split_ids, paused in ((pause, True), (resume, False)):
            for split_id in self._held.keys() & split_ids:
                # spec: SplitFetch!Pause, SplitFetch!Resume, SplitPerThread!Pause, SplitPerThread!Resume
                self._held[split_id].paused = paused
        if self.threading is Threading.MANY_SPLITS and (pause or resume):
            for fetcher in self._fetchers:
                fetcher.tell()
        self._bell.ring()

    def close(self) -> None:
        """End the threads: wake their fetches, and wait for them, `grace` seconds in all. Idempotent."""
        with self._guard:
            if self._closed:
                return
            self._closed = True  # spec: SplitPerThread!Close
            fetchers, self._fetchers = self._fetchers, []
        for fetcher in fetchers:
            fetcher.close()  # spec: SplitPerThread!CloseLane
        self._bell.ring()  # spec: SplitPerThread!ClosePokes
        deadline = time.monotonic() + self._grace
        for fetcher in (*self._ending, *fetchers):
            fetcher.thread.join(max(0.0, deadline - time.monotonic()))
            if fetcher.thread.is_alive():
                log.warning(STILL_FETCHES, fetcher.thread.name, self._grace)

    # -- inside --------------------------------------------------------------------------------------

    def _open(self, splits: Sequence[_Held[S]]) -> None:
        fetcher = Fetcher(self, self._started, Handover(*self._room), self._bell)
        self._started += 1
        fetcher.tell(splits)
        # spec: SplitPerThread!Open
        with self._guard:
            self._check_open()
            start_thread(fetcher.thread)
            self._fetchers = [*self._fetchers, fetcher]

    def _end(self, fetcher: Fetcher[S]) -> None:
        with self._guard:
            if self._closed:
                return
            self._fetchers = [each for each in self._fetchers if each is not fetcher]
            self._ending = [each for each in self._ending if each.thread.is_alive()] + [fetcher]
        fetcher.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(CLOSED)

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            if not self._thread:
                raise RuntimeError("the reader was not started: call start() first")
            raise WrongThreadError(described_thread(self._thread), described_thread(threading.get_ident()))
