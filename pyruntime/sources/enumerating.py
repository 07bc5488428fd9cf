"""The threads of an enumerator, and the splits that it has found and nobody reads: `EnumeratorThread`.

One thread confines the enumerator, another one discovers. Batch reads, micro-batches and tasks all run their
enumerators with it. It is thread-safe but for what its docstring confines to the enumerator's thread. The
idea is that of Flink's `SourceCoordinator`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from pillarbox.kernel import MailboxClosedError
from pillarbox.mailbox.processor import Controller, MailboxProcessor
from pillarbox.sources.enumerator import EnumeratorContext, ReaderInfo, SplitEnumerator
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)
C = TypeVar("C")
T = TypeVar("T")
P = ParamSpec("P")

MAX_SPLITS_PER_DISCOVERY = 1000
"""While so many wait, no discovery begins."""
MAX_PLANNED_SPLITS = 3_000_000
"""Splits that are found before any is read; a discovery that goes on counts as one without an end."""
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 30.0
"""Until a discovery that has failed is tried again, where the source has no interval."""
STOP_TIMEOUT_S = 5.0
"""For a discovery that is running to come to its end."""
MAX_FINDS = 10
"""Of one split id, with no discovery between them that has found nothing; more is one without an end."""


class DiscoveryContractError(ValueError):
    """A `discover` breaks its contract. Its text names the class, the method and the rule."""


@dataclass(frozen=True)
class Waiting(Generic[S]):
    """A split that waits, and how many records from its `start` on are behind it already."""

    split: S
    skip: int = 0


@dataclass(frozen=True)
class Restored(Generic[S, C]):
    """A state that an enumerator goes on from: what was known, and the splits that waited."""

    checkpoint: C
    waiting: Sequence[Waiting[S]] = ()


class PendingSplits(Generic[S]):
    """The splits that wait for a reader: by the source's rule, by nearness, in order. Pure state.

    Confined to the thread of `enumerator`. With 10,000 splits that wait, taking one costs what it costs with
    ten, unless the source chooses itself.

    rule: the reader that is to have a split; None for the source's own, `assigned_to`.
    """

    def __init__(
        self, enumerator: SplitEnumerator[S, Any], rule: Callable[[S], int | None] | None = None
    ) -> None:
        self._enumerator = enumerator
        self._rule = enumerator.assigned_to if rule is None else rule
        # In the order in which they came; taking the first of a dict would look at all that were taken.
        self._all: OrderedDict[str, tuple[Waiting[S], int | None]] = OrderedDict()
        self._ruled: dict[int, OrderedDict[str, None]] = {}
        self._free: OrderedDict[str, None] = OrderedDict()
        self._near: dict[str, OrderedDict[str, None]] = {}
        self._by_default = type(enumerator).choose is SplitEnumerator.choose

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._all

    def ruled(self, subtask: int) -> int:
        """Count those that are this reader's by the rule."""
        return len(self._ruled.get(subtask, ()))

    def waiting(self) -> list[Waiting[S]]:
        """All of them, in the order in which they came."""
        return [waiting for waiting, _ in self._all.values()]

    def take_all(self) -> list[Waiting[S]]:
        """All of them, in the order in which they came; then none waits."""
        found = self.waiting()
        for each in found:
            self.remove(each.split.split_id)
        return found

    def add(self, waiting: Iterable[Waiting[S]], subtask: int | None = None) -> None:
        """Let these wait, for the reader `subtask`, or by the rule.

        Raises ValueError for one that waits already, or a rule that names no reader.
        """
        for each in waiting:
            split = each.split
            name = split.split_id
            if name in self._all:
                raise found_again(self._enumerator, name)
            reader = self._rule(split) if subtask is None else subtask
            if reader is None:
                self._free[name] = None
                for host in split.hosts:
                    self._near.setdefault(host, OrderedDict())[name] = None
            else:
                parallelism = self._enumerator.context.parallelism
                if not 0 <= reader < parallelism:
                    raise ValueError(
                        f"assigned_to({name!r}) is {reader!r}: must be None or from 0 to {parallelism - 1}"
                    )
                self._ruled.setdefault(reader, OrderedDict())[name] = None
            self._all[name] = each, reader

    def remove(self, split_id: str) -> Waiting[S] | None:
        """Let it wait no more; None if it does not."""
        found = self._all.pop(split_id, None)
        if found is None:
            return None
        waiting, reader = found
        if reader is not None:
            del self._ruled[reader][split_id]
            return waiting
        del self._free[split_id]
        for host in waiting.split.hosts:
            near = self._near.get(host)
            if near is not None:
                near.pop(split_id, None)
                if not near:
                    del self._near[host]
        return waiting

    def take(self, reader: ReaderInfo) -> Waiting[S] | None:
        """One for a reader that asks: its own by the source's rule, or else one that it chooses; or None."""
        ruled = self._ruled.get(reader.subtask)
        if ruled:
            return self.remove(next(iter(ruled)))
        if not self._free:
            return None
        if self._by_default:
            near = self._near.get(reader.host)
            return self.remove(next(iter(near or self._free)))
        names = [*self._free]
        at = self._enumerator.choose([self._all[name][0].split for name in names], reader)
        if not 0 <= at < len(names):
            raise ValueError(f"choose(...) is {at!r}: must be a place in `pending`, 0 to {len(names) - 1}")
        return self.remove(names[at])

    def take_ruled(self, subtask: int) -> list[Waiting[S]]:
        """All that are this reader's by the rule."""
        found = [self.remove(name) for name in [*self._ruled.get(subtask, ())]]
        return [each for each in found if each is not None]


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
        if len(seen) > MAX_PLANNED_SPLITS:
            raise DiscoveryContractError(
                f"{type(enumerator).__name__}.discover has found more than {MAX_PLANNED_SPLITS:,} splits and "
                "does not end: must give no splits when its checkpoint knows all that are there"
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


class EnumeratorThread(Generic[S, C]):
    """Runs the enumerator of `source` on a thread of its own, and its `discover` on another.

    context: what the enumerator may ask and order.
    restored: what to go on from, or a function that gives it, which may block; None for a new run.
    rule: which reader is to have a split, see `PendingSplits`; None for the source's own.
    most: splits of one discovery at most. While so many wait, none begins.
    on_demand: whether a discovery begins only when somebody calls `look`.
    began: called on the enumerator's thread, with `self`, when the enumerator is there, before splits wait.
    changed: called on the enumerator's thread after splits or the end were found.
    failed: called once, on the enumerator's thread, with what ended it: a first discovery that failed, or
        what the enumerator has raised. Then `submit` raises it too.

    Discovery begins with `start`. It goes on at once while it finds something and there is room,
    otherwise after the source's interval. A bounded source, and one without an interval, is `exhausted` when
    a discovery has found nothing. Only a discovery before which nothing was known ends the run by failing; a
    later one is logged and tried again. One that breaks the contract of `discover` always ends it.
    """

    def __init__(
        self,
        source: Source[S, C],
        context: EnumeratorContext[S],
        *,
        restored: Restored[S, C] | Callable[[], Restored[S, C]] | None = None,
        rule: Callable[[S], int | None] | None = None,
        most: int = MAX_SPLITS_PER_DISCOVERY,
        on_demand: bool = False,
        began: Callable[[EnumeratorThread[S, C]], None] | None = None,
        changed: Callable[[], None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        if most < 1:
            raise ValueError(f"most={most!r}: must be 1 or more")
        self._source = source
        self._context = context
        self._restored = restored
        self._rule = rule
        self._most = most
        self._on_demand = on_demand
        self._began = began
        self._changed = changed
        self._failed = failed
        self._bounded = source.boundedness is Boundedness.BOUNDED
        self._failure: BaseException | None = None
        self._closed = False
        # The enumerator's thread.
        self.enumerator: SplitEnumerator[S, C]
        """Confined to the enumerator's thread."""
        self.pending: PendingSplits[S]
        """The splits that wait. Confined to the enumerator's thread; call `need` after taking some."""
        self.exhausted = False
        """True if no other split will be found; `changed` tells of it. The enumerator's thread."""
        self._knows = restored is not None
        self._running = False
        self._found_last = True
        self._due = 0.0
        self._retry = FIRST_RETRY_S
        # Found, and not finished for good: discovery must not find them again. And those that may come again,
        # each with how often it has since the last discovery that found nothing.
        self._ids: set[str] = set()
        self._forgotten: dict[str, int] = {}
        self._finished: list[S] = []
        self._waiters: list[Future[None]] = []
        # Both threads.
        self._condition = threading.Condition()
        self._order: tuple[C, float] | None = None
        self._order_most = most
        self._all: tuple[C, int, set[str], Future[list[tuple[Sequence[S], C]]]] | None = None
        self._ended = False
        self._accepts = threading.Event()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="pillarbox-enumerator", daemon=True)
        self._discoverer = threading.Thread(target=self._discover, name="pillarbox-discover", daemon=True)

    # -- any thread ---------------------------------------------------------------------------

    @property
    def failure(self) -> BaseException | None:
        """The error that has ended it, if any has."""
        return self._failure

    def begin(self) -> EnumeratorThread[S, C]:
        """Have the enumerator made, and begin; does not wait for the source. Any thread, once.

        What is submitted meanwhile runs when the enumerator is there, and fails with what making it raises.
        """
        self._thread.start()
        self._accepts.wait()
        return self

    def start(self) -> EnumeratorThread[S, C]:
        """The same, and wait until the enumerator is there. Raises what the source raises in making it."""
        self.begin()
        try:
            self._ready.result()
        except BaseException:
            self._thread.join(STOP_TIMEOUT_S)
            raise
        return self

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `fn` called on the enumerator's thread; what it gives or raises is the future's. Any thread.

        Raises what has ended the enumerator, RuntimeError after `close`.
        """
        try:
            return self._executor.submit(fn, *args, **kwargs)
        except MailboxClosedError:
            raise self._over() from None

    def execute(self, fn: Callable[..., object], /, *args: object) -> bool:
        """The same, but what `fn` raises ends the enumerator. False, and nothing, once that has ended."""
        return self._executor.try_execute(fn, *args)

    def promise(self, fn: Callable[[Future[T]], None]) -> Future[T]:
        """Have `fn` called on the enumerator's thread with a future that it completes, then or later there.

        Any thread. The future fails with what `fn` raises, what has ended the enumerator, or RuntimeError
        after `close`; whoever keeps it must complete it when the enumerator ends.
        """
        future: Future[T] = Future()

        def asked(done: Future[None]) -> None:
            error = self._over() if done.cancelled() else done.exception()
            if error is not None:
                future.set_exception(error)

        try:
            self._executor.submit(fn, future).add_done_callback(asked)
        except MailboxClosedError:
            future.set_exception(self._over())
        return future

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `submit`, and wait. Any thread but the enumerator's. Raises what `fn` raises as well."""
        answer: Future[T] = self.promise(lambda future: future.set_result(fn(*args, **kwargs)))
        return answer.result()

    def caught_up(self) -> Future[None]:
        """Done when no discovery is running or due. Any thread. For who reads what there is now, as a batch.

        Fails with what has ended the enumerator, RuntimeError after `close`.
        """
        return self.promise(self._wait_for_discovery)

    def discover_all(self, most: int) -> Future[list[tuple[Sequence[S], C]]]:
        """All that there is now, in steps of `most` splits. Nothing of it is taken up. See `discover_all`.

        Any thread, on demand, when no discovery runs.
        """
        return self.promise(lambda future: self._order_all(most, future))

    def stop(self, last: Callable[[], T]) -> Future[T]:
        """Have `last` called on the enumerator's thread, which then ends. Any thread; then call `close`."""

        def stop() -> T:
            try:
                return last()
            finally:
                self._end()

        return self.submit(stop)

    def close(self) -> None:
        """End both threads and close the enumerator. Any thread but these; idempotent.

        A discovery that does not end within some seconds is left behind, and said in the log.
        """
        with self._condition:
            already, self._closed = self._closed, True
            self._condition.notify_all()
        if already or self._thread.ident is None:
            return
        if self._discoverer.ident is not None:
            self._discoverer.join(STOP_TIMEOUT_S)
            if self._discoverer.is_alive():
                log.warning("%r still discovers; its thread is left behind", self._source)
        self._executor.try_execute(self._end)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning("the enumerator of %r does not end; its thread is left behind", self._source)

    def __enter__(self) -> EnumeratorThread[S, C]:
        return self if self._thread.ident is not None else self.start()

    def __exit__(self, *reason: object) -> None:
        self.close()

    # -- the enumerator's thread --------------------------------------------------------------

    def need(self) -> None:
        """Splits were taken, or somebody waits: discover, if there is room. The enumerator's thread."""
        self._schedule()

    def look(self, most: int) -> None:
        """Begin a discovery of `most` splits, if one is due and none runs. The enumerator's thread."""
        if not (self._running or self.exhausted) and (self._found_last or self._due <= time.monotonic()):
            self._begin_discovery(0.0, most)

    @property
    def discovers(self) -> bool:
        """True if a discovery is ordered or running. The enumerator's thread."""
        return self._running

    @property
    def knows(self) -> bool:
        """True if anything was known at the beginning, or a discovery has ended. The enumerator's thread."""
        return self._knows

    @property
    def more_expected(self) -> bool:
        """True if the last discovery has found something, or there was none. The enumerator's thread."""
        return self._found_last and not self.exhausted

    def finished(self, splits: Sequence[S]) -> None:
        """Readers have read these to their end, and nobody gets them again. The enumerator's thread.

        The enumerator hears of it between two discoveries. It may then know less, and what a discovery has
        found that began with more would have to be thrown away: again and again, where splits end all the
        time.
        """
        self._finished += splits
        with self._condition:
            if self._order is not None:
                # It has not begun, and can begin with what is known then.
                self._order = None
                self._running = False
        self._schedule()

    def forget(self, split_ids: Iterable[str]) -> None:
        """Take what comes by these ids from now on for another split. The enumerator's thread."""
        for split_id in split_ids:
            if split_id in self._ids:
                self._ids.remove(split_id)
                self._forgotten.setdefault(split_id, 1)

    def _run(self) -> None:
        processor = MailboxProcessor(_rest, latency_interval=None)
        self._processor = processor
        self._executor = processor.executor()
        self._accepts.set()
        try:
            try:
                self._make_enumerator()
            except BaseException as error:
                self._failure = error
                self._ready.set_exception(error)
                return
            self._ready.set_result(None)
            self._discoverer.start()
            try:
                self._schedule()
                processor.run_mailbox_loop()
            except BaseException as error:
                self._fail(error)
        finally:
            self._close_enumerator()
            processor.close()
            for waiter in self._waiters:
                waiter.set_exception(self._over())

    def _make_enumerator(self) -> None:
        restored = self._restored() if callable(self._restored) else self._restored
        if restored is None:
            self.enumerator = self._source.create_enumerator(self._context)
        else:
            # spec: SplitAssignment!Restore
            self.enumerator = self._source.restore_enumerator(self._context, restored.checkpoint)
            self._ids.update(each.split.split_id for each in restored.waiting)
        self.pending = PendingSplits(self.enumerator, self._rule)
        if self._began is not None:
            self._began(self)
        if restored is not None:
            self.pending.add(restored.waiting)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        with self._condition:
            self._ended = True
            self._condition.notify_all()
        if self._failed is None:
            log.error("the enumerator of %r has failed", self._source, exc_info=error)
            return
        try:
            self._failed(error)
        except Exception:
            log.exception("nobody could be told that an enumerator has failed")

    def _over(self) -> BaseException:
        return self._failure or RuntimeError(f"the enumerator of {self._source!r} has been closed")

    def _end(self) -> None:
        self._processor.all_actions_completed()

    def _close_enumerator(self) -> None:
        if hasattr(self, "enumerator"):
            try:
                self.enumerator.close()
            except Exception:
                log.exception("an enumerator could not be closed")

    def _schedule(self) -> None:
        if self._finished and not self._running:
            # spec: SplitAssignment!Forget
            finished, self._finished = self._finished, []
            self.forget(split.split_id for split in finished)
            self.enumerator.handle_finished(finished)
        if not (self._on_demand or self._running or self.exhausted or len(self.pending) >= self._most):
            self._begin_discovery(0.0 if self._found_last else self._due, self._most)
        self._tell_waiters()

    def _begin_discovery(self, due: float, most: int) -> None:
        self._running = True
        with self._condition:
            self._order, self._order_most = (self.enumerator.checkpoint, due), most
            self._condition.notify_all()

    def _order_all(self, most: int, future: Future[list[tuple[Sequence[S], C]]]) -> None:
        with self._condition:
            self._all = self.enumerator.checkpoint, most, set(self._ids), future
            self._condition.notify_all()

    def _wait_for_discovery(self, future: Future[None]) -> None:
        self._waiters.append(future)
        self._schedule()

    def _tell_waiters(self) -> None:
        if self._waiters and not self._is_due():
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.set_result(None)

    def _is_due(self) -> bool:
        return self._running and (self._found_last or self._due <= time.monotonic())

    def _discovered(self, before: C, most: int, splits: Sequence[S], checkpoint: C) -> None:
        self._running = False
        if self.enumerator.checkpoint is not before:
            # The enumerator has learnt something else meanwhile, which must not be lost.
            self._found_last = True
            if self._on_demand:
                self.look(most)
            self._schedule()
            return
        self._knows = True
        self._retry = FIRST_RETRY_S
        self._take_up(splits, checkpoint)
        self._found_last = bool(splits)
        interval = self.enumerator.discovery_interval
        if not splits and (self._bounded or interval is None):
            self.exhausted = True
        elif not splits and interval is not None:
            self._due = time.monotonic() + interval
        if (splits or self.exhausted) and self._changed is not None:
            self._changed()
        self._schedule()

    def _take_up(self, splits: Sequence[S], checkpoint: C) -> None:
        """Let what was found wait, and know it, in one step."""
        # spec: SplitAssignment!TakeUp
        if not splits:
            self._forgotten.clear()
        for split in splits:
            name = split.split_id
            if name in self._forgotten:
                self._forgotten[name] += 1
            if name in self._ids or self._forgotten.get(name, 0) > MAX_FINDS:
                raise found_again(self.enumerator, name)
            self._ids.add(name)
        self.pending.add(Waiting(split) for split in splits)
        self.enumerator.checkpoint = checkpoint

    def _discovery_failed(self, error: BaseException) -> None:
        if not self._knows or isinstance(error, DiscoveryContractError) or not isinstance(error, Exception):
            raise error
        self._running = False
        interval = self.enumerator.discovery_interval
        wait = self._retry if interval is None else interval
        self._retry = min(self._retry * 2, MAX_RETRY_S)
        log.warning("%r could not discover; again in %g s", self._source, wait, exc_info=error)
        self._found_last = False
        self._due = time.monotonic() + wait
        self._schedule()

    # -- the discovery thread -----------------------------------------------------------------

    def _discover(self) -> None:
        while self._wait_for_order():
            with self._condition:
                order, most, self._order = self._order, self._order_most, None
                everything, self._all = self._all, None
            if everything is not None:
                self._discover_all(*everything)
            if order is None:
                continue
            known = order[0]
            try:
                splits, new = discover(self.enumerator, known, most)
            except BaseException as error:
                self._executor.try_execute(self._discovery_failed, error)
            else:
                self._executor.try_execute(self._discovered, known, most, splits, new)

    def _discover_all(
        self, known: C, most: int, ids: set[str], future: Future[list[tuple[Sequence[S], C]]]
    ) -> None:
        try:
            found = list(discover_all(self.enumerator, known, most, ids))
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(found)

    def _wait_for_order(self) -> bool:
        """Wait until something is ordered and due; False at the end."""
        with self._condition:
            while not (self._closed or self._ended):
                left = None if self._order is None else self._order[1] - time.monotonic()
                if self._all is not None or (left is not None and left <= 0.0):
                    return True
                self._condition.wait(left)
            return False


def _rest(controller: Controller) -> None:
    controller.suspend_default_action()
