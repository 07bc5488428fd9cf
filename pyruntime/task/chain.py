"""The operators of a task, one behind the other, and the links between them, where elements wait for room.

Confined to the mailbox thread.
"""

# Why links, and not calls from one operator to the next as in Flink's chain. There `output.collect` calls
# the next operator at once, so an operator that waits for room does so in the middle of every operator in
# front of it, and a snapshot taken then would see all of them half-way through an element. Here an element
# lies in a link until the operator that emitted it has returned. What that costs is a deque's append and
# popleft for each element and link; what it buys is that a snapshot is whole at every moment, and that no
# operator ever runs in the stack of another one.
#
# Why room is looked for after every action, and not told by events. An operator has room for reasons of its
# own: a call has ended, a timer has fired, the output was read. A rule by which each of them says so is
# broken by the first operator that forgets it, and the task then hangs, in silence. Looking costs one flag
# where nobody waits.
#
# Why the state that links share lies in the chain. As an object of its own it was handed the chain's
# methods, and one had to read both to know who moves what.
#
# Why a mail of an operator is told by its priority and not by who put it. An executor may be handed on, and
# its mail is still that operator's: while it yields, nothing may pass it.

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, Mail, MailboxClosedError
from pillarbox.mailbox.processor import MailboxExecutor
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointDeclined, OperatorSnapshot
from pillarbox.task.failures import Failures
from pillarbox.task.operator import Operator, OperatorContext
from pillarbox.task.operator_timers import OwnTimers
from pillarbox.task.protocols import MAX_WATERMARK, Idleness, RowBatch, TaskOutput, Watermark
from pillarbox.validate import check_methods

log = logging.getLogger("pillarbox")

T = TypeVar("T")

NOTHING: Final = object()
END_OF_TIME: Final = Watermark(MAX_WATERMARK)


class Link:
    """The output of one operator and the queue of the next one, `target`. Confined.

    It has room while it is empty and its target has room: so what does not fit waits in one place only,
    which is part of every snapshot.
    """

    __slots__ = ("_chain", "_emptied", "_waiters", "queue", "target")

    def __init__(self, chain: OperatorChain, target: Operator | None) -> None:
        self._chain = chain
        self.queue: deque[Any] = deque()
        self.target = target
        self._waiters: list[Callable[[], object]] = []
        self._emptied: Future[None] | None = None

    def restore(self, pending: Sequence[Any]) -> None:
        """Put here what was on its way in a snapshot."""
        # The snapshot may be restored once more.
        self.queue.extend(one.rest() if type(one) is RowBatch else one for one in pending)
        self._chain.time_ended |= any(type(one) is Watermark and one == END_OF_TIME for one in pending)

    def collect(self, record: Any) -> None:
        """Put a record, or a `RowBatch`, on its way to the next operator, which takes it after this one."""
        chain = self._chain
        chain.check()
        if chain.closed:
            raise RuntimeError(f"record {record!r} was emitted after the task had closed the chain")
        if chain.data_ended and self is chain.entry:
            raise RuntimeError(f"the input emitted {record!r} after the end of its data")
        self.queue.append(record)
        chain.dirty = True

    def emit_watermark(self, timestamp: float) -> None:
        """Put a watermark, in seconds of event time, on its way; the newest of several that wait counts."""
        if timestamp == MAX_WATERMARK and self is self._chain.entry:
            if self._chain.time_ended:
                # An input that was restored at its end says the end again.
                return
            self._chain.time_ended = True
        # spec: Chain!ProcessWatermark
        if self.queue and type(self.queue[-1]) is Watermark:
            self.queue.pop()
        self.collect(Watermark(timestamp))

    def emit_status(self, idle: bool) -> None:
        """Put on its way that nothing comes for a while, or that this is over."""
        self.collect(Idleness(idle))

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Raise RuntimeError: the chain sends barriers itself."""
        raise RuntimeError(f"{barrier!r} was emitted by an operator; the chain sends barriers itself")

    # -- room ---------------------------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """True while it is empty and the next operator has room."""
        assert self.target is not None
        return not self.queue and self.target.has_room

    @property
    def room(self) -> int | None:
        """Rows to emit at a time, at most; None for any number."""
        return None

    @property
    def held_bytes(self) -> int:
        """Bytes of the rows that wait here."""
        return sum(element.held_bytes for element in self.queue if type(element) is RowBatch)

    def call_when_room(self, wake: Callable[[], object]) -> None:
        """Have `wake` called once when there is room again, at the end of the action that made it."""
        self._chain.check()
        self._waiters.append(wake)
        self._chain.waits = True

    def emptied(self) -> Future[None] | None:
        """A future that is done when nothing waits here; None where nothing does."""
        if not self.queue:
            return None
        self._emptied = Future()
        self._chain.waits = True
        return self._emptied

    def wake(self) -> bool:
        """Call who waits for room, if there is some; returns True while somebody waits. The chain only."""
        # spec: Chain!Wake
        if self._emptied is not None and not self.queue:
            emptied, self._emptied = self._emptied, None
            emptied.set_result(None)
        if self._waiters and self.is_available:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter()
        return bool(self._waiters) or self._emptied is not None


class OutputLink(Link):
    """The output of the last operator: the task's output, but for a task that was cancelled. Confined."""

    # The consumer makes room at any moment, also between the look of an operator that then waits and that of
    # `watch`, at the end of the action: such room calls no one. So a look that finds none is noted till then.

    __slots__ = ("_executor", "_is_armed", "_room_mail", "_was_full")

    def __init__(self, chain: OperatorChain) -> None:
        super().__init__(chain, None)
        self._is_armed = self._was_full = False
        self._executor: MailboxExecutor | None = None
        self._room_mail = Mail(self._look, priority=MIN_PRIORITY, description="the output has room")

    def setup(self, executor: MailboxExecutor) -> None:
        """Take the executor by which the output says that it has room."""
        self._executor = executor

    def collect(self, record: Any) -> None:
        """Give a record to the task's output; to nobody once the chain was cancelled."""
        chain = self._chain
        if chain.cancelled or chain.closed:
            super().collect(record)
        else:
            chain.check()
            chain.output.collect(record)

    def emit_watermark(self, timestamp: float) -> None:
        """Give a watermark to the task's output; to nobody once the chain was cancelled."""
        chain = self._chain
        if chain.cancelled or chain.closed:
            super().emit_watermark(timestamp)
        else:
            chain.check()
            chain.output.emit_watermark(timestamp)

    def emit_status(self, idle: bool) -> None:
        """Tell the task's output, if it wants to know; to nobody once the chain was cancelled."""
        chain = self._chain
        if chain.cancelled or chain.closed:
            super().collect(Idleness(idle))
        else:
            chain.check()
            emit_status: Callable[[bool], None] | None = getattr(chain.output, "emit_status", None)
            if emit_status is not None:
                emit_status(idle)

    @property
    def is_available(self) -> bool:
        """True while the task's output has room and nothing is kept back for it."""
        if not self.queue and self._chain.output.is_available:
            return True
        self._was_full = True
        return False

    @property
    def room(self) -> int | None:
        """Rows that the task's output takes at a time; None for any number."""
        room: int | None = getattr(self._chain.output, "room", None)
        return room

    @property
    def held_bytes(self) -> int:
        """Bytes that the task's output says it holds."""
        held: int = getattr(self._chain.output, "held_bytes", 0)
        return held

    def watch(self) -> None:
        """Have another action begin when the output has room that it lacked in this one. The chain only."""
        # spec: Chain!Watch
        was_full, self._was_full = self._was_full, False
        if not self._is_armed and (was_full or not self._chain.output.is_available):
            self._is_armed = True
            # At once, if it has some by now.
            self._chain.output.call_when_room(self._has_room)

    def _has_room(self) -> None:
        """Any thread."""
        assert self._executor is not None
        self._executor.try_put(self._room_mail)

    def _look(self) -> None:
        # The chain moves and wakes at the end of every action; there is nothing else to do here.
        self._is_armed = False


class OperatorChain:
    """Runs elements through operators. Confined.

    1. The operator at position i gets elements from link i and emits into link i + 1; the last one emits into
       the task's output. Elements are moved when no operator in front is at work, those nearest to the output
       first, so a link holds what one call has emitted at most.
    2. An operator that yields is at work, in whatever method, mail or timer of its own. While it is, only the
       links behind it move: nothing passes it. Its executor has its position as priority, so only mail of
       its own and of those behind runs.
    3. A snapshot can therefore be taken at every moment at which a mail runs: the operators in front of one
       that yields have returned, and what they emitted is in the links, which go into the snapshot.
    4. What an operator has no room for waits in the link in front of it, and nowhere else: a `RowBatch` with
       its position, a watermark, a status. After every action the chain moves what can be moved, those
       nearest to the output first, and then calls who waits for room. Room comes back in two ways, by a link
       that is empty now and by an operator that has emitted, so each link is asked and no event is relied on.

    operators: at least one, with different `uid`s. check: raises for a thread that must not touch the
    chain.
    Raises TypeError for what is not an operator, ValueError for no operators, one that stands there twice, or
    two of one `uid`.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        output: TaskOutput,
        *,
        check: Callable[[], None],
    ) -> None:
        self.operators = tuple(operators)
        if not self.operators:
            raise ValueError("operators=(): a chain needs at least one operator")
        self.uids = tuple(uid_of(position, operator) for position, operator in enumerate(self.operators))
        if len({id(operator) for operator in self.operators}) < len(self.operators):
            raise ValueError(f"operators={self.operators!r}: one operator stands in it twice")
        twice = sorted({uid for uid in self.uids if self.uids.count(uid) > 1})
        if twice:
            raise ValueError(f"uids {', '.join(map(repr, twice))}: each operator of a chain needs its own")
        self.output = output
        self.check = check
        self.dirty = False
        """A link may hold something."""
        self.waits = False
        """Somebody waits for room in a link, or for a link to be empty."""
        self.cancelled = False
        """No element moves, and none leaves the task."""
        self.closed = False
        self.data_ended = False
        """The input may emit nothing any more."""
        self.time_ended = False
        """`MAX_WATERMARK` is on its way or has left, in this life or in one before: it comes once."""
        self.entry = Link(self, self.operators[0])
        """The link behind the task's input."""
        self._exit = OutputLink(self)
        behind = (Link(self, operator) for operator in self.operators[1:])
        self._links: list[Link] = [self.entry, *behind]
        self._process = tuple(operator.process for operator in self.operators)
        # None where rows are taken one by one.
        self._process_batch = tuple(
            operator.process_batch if type(operator).process_batch is not Operator.process_batch else None
            for operator in self.operators
        )
        self._waits_for_room = tuple(
            type(operator).has_room is not Operator.has_room for operator in self.operators
        )
        self._at_work: list[Any] = [NOTHING] * len(self.operators)
        self._finished = [False] * len(self.operators)
        self._first_free = 0
        self._mail_ended = False
        self.contexts: tuple[OperatorContext, ...] = ()

    # -- life ---------------------------------------------------------------------------------

    def setup(
        self,
        executor: Callable[[int], MailboxExecutor],
        clock: Callable[[], float],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Give each operator its context, with an executor and timers of its own and what ends the task."""
        self.check()
        self._exit.setup(executor(MIN_PRIORITY))
        contexts = []
        for position, uid in enumerate(self.uids):
            own, output = executor(position), [*self._links[1:], self._exit][position]
            contexts.append(OperatorContext(uid, position, own, output, OwnTimers(own, clock), fail))
        self.contexts = tuple(contexts)
        for operator, context in zip(self.operators, self.contexts, strict=True):
            operator.setup(context)

    def open(self, snapshots: Mapping[str, OperatorSnapshot] | None = None, time_ended: bool = False) -> None:
        """Restore and open the operators, from the output to the input.

        time_ended: `MAX_WATERMARK` was on its way in the snapshot, or had left.
        Raises ValueError if `snapshots` has a `uid` that the chain has not: its state would be lost.
        """
        self.check()
        self.time_ended = time_ended
        known = {} if snapshots is None else snapshots
        lost = sorted(set(known) - set(self.uids))
        if lost:
            raise ValueError(
                f"the snapshot holds operators {', '.join(map(repr, lost))}, "
                f"the chain has only {', '.join(map(repr, self.uids))}"
            )
        for position in reversed(range(len(self.operators))):
            operator = self.operators[position]
            snapshot = known.get(self.uids[position])
            if snapshot is not None:
                operator.restore_state(snapshot.state)
                self._finished[position] = snapshot.finished
                # In front of what an upstream `open` will emit.
                self._links[position].restore(snapshot.pending)
                self.dirty |= bool(snapshot.pending)
            self._call(position, operator.open)

    def finishing(self) -> Iterator[Future[Any]]:
        """Finish the operators, from the input to the output; the caller waits for each future given.

        Event time comes to its end first. For each that was not restored as finished: wait until it has taken
        all that is on its way to it, end its input, wait for what is under way and for timers that had begun,
        finish it, and wait for its mail. Once the task has failed or was cancelled, which any step may bring
        about, no operator is finished.
        """
        left = [position for position, finished in enumerate(self._finished) if not finished]
        if left and not self.time_ended:
            # spec: Chain!EndOfInput
            self._links[left[0]].queue.append(END_OF_TIME)
            self.time_ended = self.dirty = True
        self.work_off()
        for position in left:
            operator = self.operators[position]
            # spec: Chain!EndInput
            while (on_its_way := self._links[position].emptied()) is not None:
                yield on_its_way
            if self.closed or self.cancelled:
                return
            under_way = self._call(position, operator.end_input)
            self.work_off()
            if under_way is not None:
                yield under_way
            yield self._timers_done(position)
            # spec: Chain!Finish
            if self.closed or self.cancelled:
                return
            self._call(position, operator.finish)
            self._finished[position] = True
            self.work_off()
            yield self.contexts[position].executor.submit(_nothing)
            self.work_off()

    def timers_done(self) -> Iterator[Future[Any]]:
        """Let no timer begin any more; the caller waits for each future given. Idempotent."""
        yield from map(self._timers_done, range(len(self.contexts)))

    def _timers_done(self, position: int) -> Future[None]:
        return self.contexts[position].own_timers.quiesce()

    def end_mail(self) -> None:
        """From now on a mail that puts mail, such as itself again, just ends: the mailbox is quiesced."""
        self.check()
        self._mail_ended = True

    def stop(self, failures: Failures) -> None:
        """Let no operator emit any more, and drop what is on its way. Idempotent."""
        self.check()
        if self.closed:
            return
        self.closed = True
        for link in (*self._links, self._exit):
            link.queue.clear()
        for context in self.contexts:
            failures.run(f"ending the timers of operator {context.uid!r}", context.own_timers.shutdown)
        for uid, operator in zip(self.uids, self.operators, strict=True):
            failures.run(f"stopping operator {uid!r}", operator.stop)

    def close(self, failures: Failures) -> dict[str, Any]:
        """Stop and close every operator, whatever the others raise; returns the futures to wait for."""
        self.stop(failures)
        closing: dict[str, Any] = {}

        def close(uid: str, operator: Operator) -> None:
            future = operator.close()
            if future is not None:
                if not (isinstance(future, Future) or asyncio.isfuture(future)):
                    raise TypeError(f"close of operator {uid!r} gave {future!r}: must give a future or None")
                closing[uid] = future

        for uid, operator in zip(self.uids, self.operators, strict=True):
            failures.run(f"closing operator {uid!r}", close, uid, operator)
        return closing

    # -- elements -----------------------------------------------------------------------------

    def run(self, fn: Callable[..., T], /, *args: object) -> T:
        """Call `fn(*args)`, an action of the task, then move what it has emitted."""
        mail = getattr(fn, "__self__", None)
        result: T = self._run_mail(mail, fn, args) if isinstance(mail, Mail) else fn(*args)
        if self.dirty:
            self.work_off()
        if (self.waits or self.dirty) and not self.cancelled:
            self.wake()
        return result

    def _run_mail(self, mail: Mail, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            if 0 <= mail.priority < MAX_PRIORITY:
                # Of the operator at that position, which is at work should the mail yield.
                return self._call(mail.priority, fn, *args)
            return fn(*args)
        except MailboxClosedError as error:
            # A `yield_` that nothing can end refuses no mail.
            if not self._mail_ended or error.mail is None:
                raise
            log.debug("at the end of the task, %r could not put mail any more: %s", mail, error)
            return None

    def _call(self, position: int, fn: Callable[..., Any], *args: object) -> Any:
        """Call `fn(*args)` of the operator at `position`, which is at work meanwhile."""
        first = self._first_free
        if position >= first:
            self._first_free = position + 1
        try:
            return fn(*args)
        finally:
            self._first_free = first

    def work_off(self) -> None:
        """Move elements until none can move behind the operator that is at work, if one is.

        Not checked for its thread, as it ends every action: what runs the actions has checked it.
        """
        first = self._first_free
        links = self._links
        last = len(links) - 1
        position = last
        stuck = False
        while position >= first and not self.cancelled:
            queue = links[position].queue
            if not queue:
                position -= 1
            elif not self._move(position, queue):
                stuck = True
                position -= 1
            elif position != last:
                position += 1
        if first == 0 and not self.cancelled:
            self.dirty = stuck

    def _move(self, position: int, queue: deque[Any]) -> bool:
        """Give the operator at `position` what comes next; False if it has no room for any of it."""
        element = queue[0]
        kind = type(element)
        operator = self.operators[position]
        if self._waits_for_room[position] and not operator.has_room:
            return False
        first = self._first_free
        if kind is RowBatch:
            process_batch = self._process_batch[position]
            if process_batch is not None:
                before = element.position
                self._first_free = position + 1
                try:
                    took_all = process_batch(element)
                finally:
                    self._first_free = first
                # The operator may have ended the task.
                if took_all and queue and queue[0] is element:
                    queue.popleft()
                return took_all or element.position > before
            if len(element) and not operator.has_room:
                return False
            batch: RowBatch = element
            if not len(batch):
                queue.popleft()
                return True
            (element,) = batch.take(1)
            if not len(batch):
                queue.popleft()
        else:
            queue.popleft()
        self._at_work[position] = element
        self._first_free = position + 1
        try:
            if kind is Watermark:
                operator.process_watermark(element.timestamp)
            elif kind is Idleness:
                operator.process_status(element.idle)
            else:
                self._process[position](element)
        finally:
            self._at_work[position] = NOTHING
            self._first_free = first
        return True

    def wake(self) -> None:
        """Call who waits for room that there is now, behind the operator that is at work, if one is."""
        # spec: Chain!Wake
        first = self._first_free
        waits = self._exit.wake()
        for link in reversed(self._links[first:]):
            waits |= link.wake()
        if first == 0:
            self.waits = waits
        if waits or self.dirty:
            # Whoever waits does so because of the output in the end, or of an operator whose mail will come.
            self._exit.watch()

    def cancel(self) -> None:
        """Let nothing move any more, and nothing leave the task: it was cancelled."""
        self.check()
        self.cancelled = True

    # -- checkpoints --------------------------------------------------------------------------

    def snapshot(self, barrier: CheckpointBarrier) -> dict[str, OperatorSnapshot]:
        """The state of all operators and what is on its way to them, by `uid`.

        What an operator raises declines the checkpoint, and so does an operator that fails the task.
        """
        self.check()
        states: list[Any] = []
        try:
            # A loop, for the error names the operator behind the last state.
            for operator in self.operators:
                states.append(operator.snapshot_state(barrier))  # noqa: PERF401
        except CheckpointDeclined:
            raise
        except Exception as error:
            reason = f"operator {self.uids[len(states)]!r} raised {type(error).__name__}: {error}"
            raise CheckpointDeclined(barrier.id, reason) from error
        if self.closed:
            # What was on its way is dropped, and operators that were stopped have let go of their rows.
            raise CheckpointDeclined(barrier.id, "the task had failed before it was taken")
        return {
            uid: OperatorSnapshot(state, self._pending(position), self._finished[position])
            for position, (uid, state) in enumerate(zip(self.uids, states, strict=True))
        }

    def notify_complete(self, checkpoint_id: int) -> None:
        """Tell every operator that a checkpoint is complete."""
        for position, operator in enumerate(self.operators):
            self._call(position, operator.notify_checkpoint_complete, checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Tell every operator that a checkpoint will not complete."""
        for position, operator in enumerate(self.operators):
            self._call(position, operator.notify_checkpoint_aborted, checkpoint_id)

    def _pending(self, position: int) -> tuple[Any, ...]:
        at_work = self._at_work[position]
        waiting = (
            element.rest() if type(element) is RowBatch else element
            for element in self._links[position].queue
        )
        return tuple(waiting) if at_work is NOTHING else (at_work, *waiting)


OPERATOR_METHODS = [name for name, each in vars(Operator).items() if inspect.isfunction(each)]


def uid_of(position: int, operator: Operator) -> str:
    """The operator's `uid`, or one made of its position and its class."""
    if not isinstance(operator, Operator):
        raise TypeError(f"operators[{position}]={operator!r}: must be an Operator")
    if type(operator).process is Operator.process:
        raise TypeError(f"operators[{position}]={operator!r}: its class must have a method `process`")
    check_methods(f"operators[{position}]", operator, *OPERATOR_METHODS)
    return f"{position}:{type(operator).__name__}" if operator.uid is None else operator.uid


def _nothing() -> None:
    """The last mail of an operator: when it runs, all before it has run."""
