"""One thread confines an enumerator, another one discovers: `EnumeratorThread`.

The batch, the stream and the task run their enumerators with it. It is thread-safe but for what its docstring
confines to the enumerator's thread. The idea is that of Flink's `SourceCoordinator`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

from pillarbox.kernel import MailboxClosedError
from pillarbox.mailbox.processor import Controller, MailboxProcessor
from pillarbox.sources.enumerator import EnumeratorContext, SplitEnumerator
from pillarbox.sources.pool import SplitPool, Waiting
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)
C = TypeVar("C")
T = TypeVar("T")
P = ParamSpec("P")

MOST = 1000
"""Splits of one discovery; while so many wait, no other one begins."""
FIRST_RETRY, LONGEST_RETRY = 1.0, 30.0
"""Seconds until a discovery that has failed is tried again, where the source has no interval."""
STOP = 5.0
"""Seconds for a discovery that is running to come to its end."""


@dataclass(frozen=True)
class Restored(Generic[S, C]):
    """What an enumerator goes on from: what was known, and the splits that waited."""

    checkpoint: C
    waiting: Sequence[Waiting[S]] = ()


class EnumeratorThread(Generic[S, C]):
    """Runs the enumerator of `source` on a thread of its own, and its `discover` on another.

    make_context: makes what the enumerator may ask and order; called on the enumerator's thread with `self`.
        It may keep `self` and use its `pool`.
    restored: what to go on from; None for a new run.
    rule: which reader is to have a split, see `SplitPool`; None for the source's own.
    most: splits of one discovery at most. While so many wait, none begins.
    began: called on the enumerator's thread when the enumerator is there, before splits wait.
    changed: called on the enumerator's thread after splits or the end were found.
    failed: called once, on the enumerator's thread, with what ended it: a first discovery that failed, or
        what the enumerator has raised. Then `submit` raises it too.

    Discovery begins with `start`. It goes on at once while it finds something and the pool has room,
    otherwise after the source's interval. A bounded source, and one without an interval, is `exhausted` when
    a discovery has found nothing. Only a discovery before which nothing was known ends the run by failing; a
    later one is logged and tried again.
    """

    def __init__(
        self,
        source: Source[S, C],
        make_context: Callable[[EnumeratorThread[S, C]], EnumeratorContext[S]],
        *,
        restored: Restored[S, C] | None = None,
        rule: Callable[[S], int | None] | None = None,
        most: int = MOST,
        began: Callable[[], None] | None = None,
        changed: Callable[[], None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        if most < 1:
            raise ValueError(f"most={most!r}: must be 1 or more")
        self._source = source
        self._make_context = make_context
        self._restored = restored
        self._rule = rule
        self._most = most
        self._began = began
        self._changed = changed
        self._failed = failed
        self._bounded = source.boundedness is Boundedness.BOUNDED
        self._failure: BaseException | None = None
        self._closed = False
        # The enumerator's thread.
        self.enumerator: SplitEnumerator[S, C]
        """Confined to the enumerator's thread."""
        self.pool: SplitPool[S]
        """The splits that wait. Confined to the enumerator's thread; call `need` after taking some."""
        self.exhausted = False
        """Whether no other split will be found; `changed` tells of it. The enumerator's thread."""
        self._knows = restored is not None
        self._running = False
        self._found_last = True
        self._due = 0.0
        self._retry = FIRST_RETRY
        self._finished: list[S] = []
        self._waiters: list[Future[None]] = []
        # Both threads.
        self._condition = threading.Condition()
        self._order: tuple[C, float] | None = None
        self._ended = False
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="pillarbox-enumerator", daemon=True)
        self._discoverer = threading.Thread(target=self._discover, name="pillarbox-discover", daemon=True)

    # -- any thread ---------------------------------------------------------------------------

    @property
    def failure(self) -> BaseException | None:
        """What has ended it, if anything has."""
        return self._failure

    def start(self) -> EnumeratorThread[S, C]:
        """Make the enumerator and begin. Any thread, once. Raises what the source raises in making it."""
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:
            self._thread.join(STOP)
            raise
        self._discoverer.start()
        self._executor.execute(self._schedule)
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

    def caught_up(self) -> Future[None]:
        """Done when no discovery is running or due. Any thread. For who reads what there is now, as a batch.

        Fails with what has ended the enumerator, RuntimeError after `close`.
        """
        return self.promise(self._wait_for_discovery)

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
            self._discoverer.join(STOP)
            if self._discoverer.is_alive():
                log.warning("%r still discovers; its thread is left behind", self._source)
        self._executor.try_execute(self._end)
        self._thread.join(STOP)
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

    def _run(self) -> None:
        processor = MailboxProcessor(_rest, latency_interval=None)
        self._processor = processor
        self._executor = processor.executor()
        try:
            try:
                context = self._make_context(self)
                if self._restored is None:
                    self.enumerator = self._source.create_enumerator(context)
                else:
                    # spec: SplitAssignment!Restore
                    self.enumerator = self._source.restore_enumerator(context, self._restored.checkpoint)
                self.pool = SplitPool(self.enumerator, self._rule)
                if self._began is not None:
                    self._began()
                if self._restored is not None:
                    self.pool.add(self._restored.waiting)
            except BaseException as error:
                self._ready.set_exception(error)
                return
            self._ready.set_result(None)
            try:
                processor.run_mailbox_loop()
            except BaseException as error:
                self._fail(error)
        finally:
            self._close_enumerator()
            processor.close()
            for waiter in self._waiters:
                waiter.set_exception(self._over())

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
            self.enumerator.handle_finished(finished)
        if not (self._running or self.exhausted or len(self.pool) >= self._most):
            self._running = True
            with self._condition:
                due = 0.0 if self._found_last else self._due
                self._order = self.enumerator.checkpoint, due
                self._condition.notify_all()
        self._tell_waiters()

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

    def _discovered(self, before: C, splits: Sequence[S], checkpoint: C) -> None:
        self._running = False
        if self.enumerator.checkpoint is not before:
            # The enumerator has learnt something else meanwhile, which must not be lost.
            self._found_last = True
            self._schedule()
            return
        self._knows = True
        self._retry = FIRST_RETRY
        self.pool.take_up(splits, checkpoint)
        self._found_last = bool(splits)
        interval = self.enumerator.discovery_interval
        if not splits and (self._bounded or interval is None):
            self.exhausted = True
        elif not splits and interval is not None:
            self._due = time.monotonic() + interval
        if (splits or self.exhausted) and self._changed is not None:
            self._changed()
        self._schedule()

    def _discovery_failed(self, error: BaseException) -> None:
        if not self._knows or not isinstance(error, Exception):
            raise error
        self._running = False
        interval = self.enumerator.discovery_interval
        wait = self._retry if interval is None else interval
        self._retry = min(self._retry * 2, LONGEST_RETRY)
        log.warning("%r could not discover; again in %g s", self._source, wait, exc_info=error)
        self._found_last = False
        self._due = time.monotonic() + wait
        self._schedule()

    # -- the discovery thread -----------------------------------------------------------------

    def _discover(self) -> None:
        while (checkpoint := self._next_order()) is not None:
            known = checkpoint[0]
            try:
                # spec: SplitAssignment!Discover
                splits, new = self.enumerator.discover(known, self._most)
                if len(splits) > self._most:
                    raise ValueError(f"discover gave {len(splits)} splits: at most most={self._most}")
            except BaseException as error:
                self._executor.try_execute(self._discovery_failed, error)
            else:
                self._executor.try_execute(self._discovered, known, splits, new)

    def _next_order(self) -> tuple[C] | None:
        with self._condition:
            while not (self._closed or self._ended):
                if self._order is None:
                    self._condition.wait()
                    continue
                checkpoint, due = self._order
                left = due - time.monotonic()
                if left <= 0.0:
                    self._order = None
                    return (checkpoint,)
                self._condition.wait(left)
            return None


def _rest(controller: Controller) -> None:
    controller.suspend_default_action()
