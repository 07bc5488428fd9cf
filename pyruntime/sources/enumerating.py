"""The threads of an enumerator, and the splits that it has found and nobody reads: `EnumeratorThread`.

One thread confines the enumerator, another one discovers. Batch reads, micro-batches and tasks all run their
enumerators with it. It is thread-safe but for what its docstring confines to the enumerator's thread. The
idea is that of Flink's `SourceCoordinator`.
"""

# Why two threads. A discovery lists a bucket or asks a broker, for seconds or minutes; meanwhile readers ask
# for splits, end, and come back. On one thread they would wait for it. With a lock around the state each
# method of a connector would have to know under which lock it runs; so the enumerator has a thread and a
# mailbox, and `discover` alone runs elsewhere: a function of what is known, that changes nothing.
#
# What was found is taken up only if the enumerator still knows what the discovery began with, compared by
# identity, and in one step with the splits. To merge two sorts of knowledge only the connector would know
# how; to throw a discovery away costs one more. So that it does not cost one after the other where splits
# end all the time, the enumerator hears of finished splits between discoveries only (`finished`).
#
# Why a discovery that fails later is tried again, and a first one is not: a wrong address or a missing right
# shows at the first, and an error at the start is what its user waits for; later it is a service that is
# away.

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from pillarbox.sources.enumerator import EnumeratorContext, ReaderInfo, ReaderState, SplitEnumerator
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split
from pillarbox.thread_start import start_thread

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)
C = TypeVar("C")
T = TypeVar("T")
P = ParamSpec("P")

MAX_SPLITS_PER_DISCOVERY = 1000
"""Splits that one finds, at most; while so many wait, none begins."""


class DiscoveryPace(NamedTuple):
    """The number of splits that discovery finds ahead, and the times of an `EnumeratorThread`. A plain value.

    most: splits of one discovery. first_retry, max_retry: seconds until one that has failed is tried again,
    where the source has no interval. stop_timeout: seconds for one that is running to come to its end.
    """

    most: int = MAX_SPLITS_PER_DISCOVERY
    first_retry: float = 1.0
    max_retry: float = 30.0
    stop_timeout: float = 5.0


DEFAULT_PACE = DiscoveryPace()


class DiscoveryContractError(ValueError):
    """A `discover` breaks its contract. Its text names the class, the method and the rule."""


@dataclass(frozen=True)
class Waiting(Generic[S]):
    """A split that waits, and how many records from its `start` on are behind it already."""

    split: S
    skip: int = 0


@dataclass(frozen=True)
class Checkpoint(Generic[S, C]):
    """All of a run at one moment: what is known, what nobody has, what each reader has. A plain value."""

    checkpoint: C
    """The knowledge of the enumerator."""
    waiting: Sequence[Waiting[S]] = ()
    readers: Mapping[int, ReaderState[S]] = field(default_factory=dict)
    """Of tasks only: a plan or a log says itself who has what."""
    number: int = 0
    """Counts the checkpoints of a coordinator of tasks, from 1."""

    def unread(self) -> list[Waiting[S]]:
        """All that is to be read after it, whoever had it."""
        return [*self.waiting, *(each for state in self.readers.values() for each in waiting_of(state))]


def waiting_of(state: ReaderState[S]) -> list[Waiting[S]]:
    """The splits of a reader, and what of each is behind it."""
    return [Waiting(split, state.skip.get(split.split_id, 0)) for split in state.splits]


class PendingSplits(Generic[S]):
    """The splits that wait for a reader: by the source's rule, by its choice, in order. Pure state.

    Confined to the thread of `enumerator`.

    rule: the reader that is to have a split; None for the source's own, `assigned_to`.
    """

    def __init__(
        self, enumerator: SplitEnumerator[S, Any], rule: Callable[[S], int | None] | None = None
    ) -> None:
        self._enumerator = enumerator
        self._rule = enumerator.assigned_to if rule is None else rule
        # By the number of the reader that is to have them, or None; in the order in which they came.
        self._queues: defaultdict[int | None, dict[str, Waiting[S]]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def waiting(self) -> list[Waiting[S]]:
        """All of them, those for one reader in the order in which they came."""
        return [waiting for queue in self._queues.values() for waiting in queue.values()]

    def take_all(self) -> list[Waiting[S]]:
        """All of them, as `waiting`; then none waits."""
        found = self.waiting()
        self._queues.clear()
        return found

    def add(self, waiting: Iterable[Waiting[S]], subtask: int | None = None) -> None:
        """Let these wait, for the reader `subtask`, or by the rule.

        Raises ValueError for one that waits already, or a rule that names no reader.
        """
        parallelism = self._enumerator.context.parallelism
        for each in waiting:
            name = each.split.split_id
            if any(name in queue for queue in self._queues.values()):
                raise found_again(self._enumerator, name)
            reader = self._rule(each.split) if subtask is None else subtask
            if reader is not None and not 0 <= reader < parallelism:
                raise ValueError(
                    f"assigned_to({name!r}) is {reader!r}: must be None or from 0 to {parallelism - 1}"
                )
            self._queues[reader][name] = each

    def remove(self, split_id: str) -> Waiting[S] | None:
        """Let it wait no more; None if it does not."""
        found = [queue.pop(split_id) for queue in self._queues.values() if split_id in queue]
        return found[0] if found else None

    def take(self, reader: ReaderInfo) -> Waiting[S] | None:
        """One for a reader that asks: its own by the source's rule, or else one that the source chooses."""
        if own := self._queues[reader.subtask]:
            return own.pop(next(iter(own)))
        free = [waiting.split for waiting in self._queues[None].values()]
        if not free:
            return None
        at = self._enumerator.choose(free, reader)
        if not 0 <= at < len(free):
            raise ValueError(f"choose(...) is {at!r}: must be a place in `pending`, 0 to {len(free) - 1}")
        return self._queues[None].pop(free[at].split_id)

    def ruled(self, subtask: int) -> int:
        """Count those that are this reader's by the rule."""
        return len(self._queues[subtask])

    def take_ruled(self, subtask: int) -> list[Waiting[S]]:
        """All that are this reader's by the rule."""
        return [*self._queues.pop(subtask, {}).values()]


def discover(enumerator: SplitEnumerator[S, C], known: C, most: int) -> tuple[Sequence[S], C]:
    """Call `discover`, and refuse what breaks its contract: such a discovery would never come to its end.

    Raises DiscoveryContractError that names class, method and rule. On the discovery thread.
    """
    name = f"{type(enumerator).__name__}.discover"
    # spec: SplitAssignment!Discover
    found = enumerator.discover(known, most)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Sequence)):
        raise DiscoveryContractError(
            f"{name} gave {found!r:.200}: must give a tuple of splits and a checkpoint"
        )
    splits, checkpoint = found
    if len(splits) > most:
        raise DiscoveryContractError(f"{name} gave {len(splits)} splits: at most most={most}")
    if splits and _is_same(checkpoint, known):
        raise DiscoveryContractError(
            f"{name} gave {len(splits)} splits, the first {splits[0].split_id!r}, and the checkpoint that it "
            "was given: must give a new one that knows them, or it finds them again and again"
        )
    return splits, checkpoint


def discover_all(
    enumerator: SplitEnumerator[S, C], known: C, most: int, ids: Iterable[str] = ()
) -> Iterator[tuple[Sequence[S], C]]:
    """All that there is now, in steps: splits, and what is known with them. None of it is taken up.

    ids: those of splits that are known. Raises as `discover`, and for one that has no end.
    """
    seen = set(ids)
    while True:
        before = known
        splits, known = discover(enumerator, known, most)
        if not splits:
            if not _is_same(known, before):
                # That nothing is there can be knowledge as well.
                yield splits, known
            return
        for split in splits:
            if split.split_id in seen:
                raise found_again(enumerator, split.split_id)
            seen.add(split.split_id)
        if len(seen) > enumerator.max_planned_splits:
            raise DiscoveryContractError(
                f"{type(enumerator).__name__}.discover has found more than {enumerator.max_planned_splits:,} "
                "splits and does not end: must give no splits when its checkpoint knows all that are there"
            )
        yield splits, known


def found_again(enumerator: SplitEnumerator[Any, Any], split_id: str) -> DiscoveryContractError:
    """The error for a split whose id another one has, or that is found twice."""
    return DiscoveryContractError(
        f"{type(enumerator).__name__}.discover found split_id={split_id!r} twice: each split must have an id "
        "of its own, and it must not find what its checkpoint knows"
    )


def _is_same(checkpoint: object, known: object) -> bool:
    if checkpoint is known:
        return True
    try:
        return bool(checkpoint == known)
    except Exception:
        # One of a class that cannot tell.
        return False


class SplitDealer(EnumeratorContext[S], Protocol):
    """Interface that an `EnumeratorThread` needs of its coordinator. Called on the enumerator's thread."""

    def begin(self, thread: EnumeratorThread[S, Any], restored: Checkpoint[S, Any] | None) -> None:
        """Note the thread, whose enumerator has been made. restored: what it goes on from, if anything."""

    def rule(self, split: S) -> int | None:
        """Return the reader that a split is for; None for any."""

    def serve(self) -> None:
        """Deal out what waits. Called when splits have begun to wait, and when no more will be found."""

    def fail(self, error: BaseException) -> None:
        """Fail every reader with what has ended the enumerator."""


class EnumeratorThread(Generic[S, C]):
    """Runs the enumerator of `source` on a thread of its own, and its `discover` on another.

    coordinator: the enumerator's context, which deals out what is found.
    restored: what to go on from; None for a new run.
    on_demand: whether a discovery begins only when somebody calls `look`.
    failed: called once, on the enumerator's thread, after the coordinator's readers, with what ended it:
        making the enumerator, a first discovery that failed, or what the enumerator has raised.

    Discovery begins with `start`. It goes on at once while it finds something and there is room,
    otherwise after the source's interval. A bounded source, and one without an interval, is `exhausted` when
    a discovery has found nothing. Only a discovery before which nothing was known ends the run by failing; a
    later one is logged and tried again. One that breaks the contract of `discover` always ends it.
    """

    def __init__(
        self,
        source: Source[S, C],
        coordinator: SplitDealer[S],
        *,
        restored: Checkpoint[S, C] | None = None,
        on_demand: bool = False,
        failed: Callable[[BaseException], None] | None = None,
        pace: DiscoveryPace = DEFAULT_PACE,
    ) -> None:
        self.source = source
        self._pace = pace
        self._coordinator = coordinator
        self._restored = restored
        self._on_demand = on_demand
        self._failed = failed
        self.failure: BaseException | None = None
        """The error that has ended it, if any has. Any thread."""
        self._reason: BaseException = RuntimeError(f"the enumerator of {source!r} has been closed")
        # What was asked for and has no answer yet; any thread.
        self._unanswered: set[Future[Any]] = set()
        # The enumerator's thread.
        self.enumerator: SplitEnumerator[S, C]
        """Confined to the enumerator's thread."""
        self.pending: PendingSplits[S]
        """The splits that wait. Confined to the enumerator's thread."""
        self.exhausted = False
        """True if no other split will be found. The enumerator's thread."""
        self.knows = restored is not None
        """True if anything was known at the beginning, or a discovery has ended. The enumerator's thread."""
        self.discovers = False
        """True if a discovery is ordered or running. The enumerator's thread."""
        # When the next discovery may begin; 0 after one that has found something.
        self._due = 0.0
        self._retry = pace.first_retry
        # What discovery must not find again: what is still read, and what it has found since it last found
        # nothing. And what was known when it last came back.
        self._open: set[str] = set()
        self._new: set[str] = set()
        self._known: C
        self._finished: list[S] = []
        self._waiters: list[Future[None]] = []
        # Any thread: what each of the two is to do; the discovery thread also when, and None to end.
        self._steps: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._orders: SimpleQueue[tuple[float, Callable[[], None]] | None] = SimpleQueue()
        self._has_begun = False
        """True from the beginning of a discovery until it is taken up."""
        self._is_over = False
        self._made: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="pillarbox-enumerator", daemon=True)
        self._discoverer = threading.Thread(target=self._run_orders, name="pillarbox-discover", daemon=True)

    # -- any thread ---------------------------------------------------------------------------

    @property
    def over(self) -> BaseException:
        """The error for those who ask for something when it has ended. Any thread."""
        return self.failure or self._reason

    def start(self) -> EnumeratorThread[S, C]:
        """Have the enumerator made, and begin. Any thread, once. Raises what making it raises."""
        start_thread(self._thread)
        try:
            self._made.result()
        except BaseException:
            self.close()
            raise
        return self

    def submit(self, fn: Callable[P, T | Future[T]], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `fn` called on the enumerator's thread; where it gives a future, the answer is that one's.

        Any thread. The answer fails with what `fn` raises, what has ended the enumerator, or RuntimeError
        after `close`, also where it would have come later.
        """
        answer: Future[T] = Future()
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)

        if self._is_over:
            _fail(answer, self.over)
        # A step that is dropped at the end leaves its answer among those that fail then.
        self._steps.put(partial(_resolve, answer, partial(self._step, partial(fn, *args, **kwargs))))
        return answer

    def call(self, fn: Callable[P, T | Future[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `submit`, and wait. Any thread but the enumerator's. Raises what `fn` raises as well."""
        return self.submit(fn, *args, **kwargs).result()

    def execute(self, fn: Callable[..., object], /, *args: object) -> bool:
        """The same, but what `fn` raises ends the enumerator. False, and nothing, once that has ended."""
        if not self._is_over:
            self._steps.put(partial(self._step, partial(fn, *args)))
        return not self._is_over

    def caught_up(self) -> Future[None]:
        """Done when no discovery is running or due. Any thread. For who reads what there is now, as a batch.

        Fails as `submit`.
        """
        return self.submit(self._wait_for_discovery)

    def discover_all(self, most: int) -> Future[list[tuple[Sequence[S], C]]]:
        """All that there is now, in steps of `most` splits. Nothing of it is taken up. See `discover_all`.

        Any thread, on demand, when no discovery runs.
        """
        return self.submit(self._order_all, most)

    def close(self, reason: BaseException | None = None) -> None:
        """End both threads and close the enumerator. Any thread but these; idempotent.

        reason: the error of those that ask for something now or later. A discovery that does not end within
        some seconds is left behind, and said in the log.
        """
        self._reason = reason or self._reason
        if self._thread.ident is None:
            return
        self.execute(self.end)
        # It waits for the discovery thread in its turn.
        self._thread.join(2 * self._pace.stop_timeout)
        if self._thread.is_alive():
            log.warning("the enumerator of %r does not end; its thread is left behind", self.source)

    # -- the enumerator's thread --------------------------------------------------------------

    def look(self, most: int) -> None:
        """Begin a discovery of `most` splits, if one is due and none runs. The enumerator's thread."""
        if not (self.discovers or self.exhausted) and self._due <= time.monotonic():
            self._order_discovery(most)

    @property
    def more_expected(self) -> bool:
        """True if the last discovery has found something, or there was none. The enumerator's thread."""
        return self._due == 0.0 and not self.exhausted

    def finished(self, splits: Sequence[S]) -> None:
        """Readers have read these to their end, and nobody gets them again. The enumerator's thread.

        The enumerator hears of it between two discoveries. It may then know less, and what a discovery has
        found that began with more would have to be thrown away: again and again, where splits end all the
        time.
        """
        self._finished += splits

    def forget(self, split_ids: Iterable[str]) -> None:
        """These have been read to their end, or are gone. The enumerator's thread.

        What comes by their ids is another split, unless it is plain that a discovery does not know what it
        has found: when none has found nothing since, and the enumerator has changed its `checkpoint` for no
        other reason either, as one does that lets go of a name.
        """
        split_ids = [*split_ids]
        self._open.difference_update(split_ids)
        if self.enumerator.checkpoint is not self._known:
            self._new.difference_update(split_ids)

    def end(self) -> None:
        """End after this step. The enumerator's thread."""
        self._is_over = True

    def _run(self) -> None:
        try:
            self._make_enumerator()
            self._made.set_result(None)
            start_thread(self._discoverer)
            while not self._is_over:
                self._steps.get()()
        except BaseException as error:
            self.failure = error
            if not self._made.done():
                self._made.set_exception(error)
        finally:
            # Before the answers fail: a step that comes now has its own among them, or is refused.
            self._is_over = True
            self._coordinator.fail(self.over)
            if self._failed is not None and self.failure is not None:
                try:
                    self._failed(self.failure)
                except Exception:
                    log.exception("failed=%r of the coordinator raised an error", self._failed)
            self._end_discovery()
            self._close_enumerator()
            for answer in [*self._unanswered]:
                _fail(answer, self.over)

    def _make_enumerator(self) -> None:
        restored = self._restored
        if restored is None:
            self.enumerator = self.source.create_enumerator(self._coordinator)
        else:
            # spec: SplitAssignment!Restore
            self.enumerator = self.source.restore_enumerator(self._coordinator, restored.checkpoint)
            self._open.update(each.split.split_id for each in restored.unread())
        self._known = self.enumerator.checkpoint
        self.pending = PendingSplits(self.enumerator, self._coordinator.rule)
        self._coordinator.begin(self, restored)
        if restored is not None:
            self.pending.add(restored.unread())
        self._schedule()

    def _close_enumerator(self) -> None:
        if hasattr(self, "enumerator"):
            try:
                self.enumerator.close()
            except Exception:
                log.exception("an enumerator could not be closed")

    def _step(self, fn: Callable[[], T]) -> T:
        """Everything that comes from outside: whatever it has changed, a discovery may be due after it."""
        try:
            return fn()
        finally:
            self._schedule()

    def _schedule(self) -> None:
        if self._finished and not self._has_begun:
            # spec: SplitAssignment!Forget
            finished, self._finished = self._finished, []
            self.enumerator.handle_finished(finished)
            self.forget(split.split_id for split in finished)
        room = len(self.pending) < self._pace.most
        if room and not (self._on_demand or self.discovers or self.exhausted):
            self._order_discovery(self._pace.most)
        if self._waiters and not (self.discovers and self._due <= time.monotonic()):
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.set_result(None)

    def _wait_for_discovery(self) -> Future[None]:
        self._waiters.append(Future())
        return self._waiters[-1]

    def _order_discovery(self, most: int) -> None:
        self.discovers = True
        self._orders.put((self._due, partial(self._discover, most)))

    def _order_all(self, most: int) -> Future[list[tuple[Sequence[S], C]]]:
        found: Future[list[tuple[Sequence[S], C]]] = Future()
        steps = discover_all(self.enumerator, self.enumerator.checkpoint, most, self._open | self._new)
        self._orders.put((0.0, partial(_resolve, found, lambda: [*steps])))
        return found

    def _discovered(self, before: C, most: int, splits: Sequence[S], checkpoint: C) -> None:
        self.discovers = self._has_begun = False
        if self.enumerator.checkpoint is not before:
            # The enumerator has learnt something else meanwhile, which must not be lost.
            self._due = 0.0
            if self._on_demand:
                self.look(most)
            return
        self.knows, self._retry = True, self._pace.first_retry
        self._take_up(splits, checkpoint)
        interval = self.enumerator.discovery_interval
        self._due = 0.0
        if not splits:
            self.exhausted = interval is None or self.source.boundedness is Boundedness.BOUNDED
            self._due = time.monotonic() + (interval or 0.0)
        if splits or self.exhausted:
            self._coordinator.serve()

    def _take_up(self, splits: Sequence[S], checkpoint: C) -> None:
        """Let what was found wait, and know it, in one step."""
        # spec: SplitAssignment!TakeUp
        if not splits:
            self._new.clear()
        for split in splits:
            name = split.split_id
            if name in self._open or name in self._new:
                raise found_again(self.enumerator, name)
            self._open.add(name)
            self._new.add(name)
        self.pending.add(Waiting(split) for split in splits)
        self.enumerator.checkpoint = self._known = checkpoint

    def _discovery_failed(self, error: BaseException) -> None:
        if not self.knows or isinstance(error, DiscoveryContractError) or not isinstance(error, Exception):
            raise error
        self.discovers = self._has_begun = False
        interval = self.enumerator.discovery_interval
        wait = self._retry if interval is None else interval
        self._retry = min(self._retry * 2, self._pace.max_retry)
        log.warning("%r could not discover; again in %g s", self.source, wait, exc_info=error)
        self._due = time.monotonic() + wait

    # -- the discovery thread -----------------------------------------------------------------

    def _run_orders(self) -> None:
        waiting: tuple[float, Callable[[], None]] | None = None
        while True:
            try:
                # One that comes takes the place of one that has not begun.
                left = None if waiting is None else max(0.0, waiting[0] - time.monotonic())
                waiting = self._orders.get(timeout=left)
                if waiting is None:
                    return
            except Empty:
                assert waiting is not None
                order, waiting = waiting[1], None
                order()

    def _discover(self, most: int) -> None:
        # Should the enumerator learn something else meanwhile, what is found will be dropped.
        self._has_begun = True
        known = self.enumerator.checkpoint
        try:
            splits, new = discover(self.enumerator, known, most)
        except BaseException as error:
            self.execute(self._discovery_failed, error)
        else:
            self.execute(self._discovered, known, most, splits, new)

    def _end_discovery(self) -> None:
        """The enumerator's thread, at its end: the enumerator is closed when nothing of it runs."""
        self._orders.put(None)
        if self._discoverer.ident is not None:
            self._discoverer.join(self._pace.stop_timeout)
            if self._discoverer.is_alive():
                log.warning("%r still discovers; its thread is left behind", self.source)


def _fail(answer: Future[Any], error: BaseException) -> None:
    """The answer has not come, and will not; unless it comes at this moment."""
    with suppress(InvalidStateError):
        answer.set_exception(error)


def _resolve(answer: Future[Any], fn: Callable[[], Any]) -> None:
    """Answer with what `fn` gives or raises; where that is a future, with what that one has in the end."""
    try:
        given = fn()
        if isinstance(given, Future):
            given.add_done_callback(lambda done: _resolve(answer, done.result))
        elif not answer.done():
            answer.set_result(given)
    except BaseException as error:
        _fail(answer, error)
