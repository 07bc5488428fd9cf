"""The operators of a task, one behind the other, and the links between them, where elements wait for room.

Confined to the mailbox thread, or to the holder of the lock where a task shares one with a legacy source.
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
# Why a barrier is an element of the first link only. Between the operators it would have to be sorted among
# watermarks that are merged and batches that are cut; instead the chain works everything off and then asks
# each operator in turn.
#
# Why a mail of an operator is told by its priority and not by who put it. An executor may be handed on, and
# its mail is still that operator's: while it yields, nothing may pass it.

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, Mail, MailboxClosedError
from pillarbox.mailbox.executor import MailboxExecutor
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointDeclined, OperatorSnapshot
from pillarbox.task.failures import Failures
from pillarbox.task.operator import Operator, OperatorContext
from pillarbox.task.protocols import MAX_WATERMARK, Idleness, LatencyMarker, RowBatch, TaskOutput, Watermark

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
        self.queue.append(record)
        chain.dirty = True

    def emit_watermark(self, timestamp: float) -> None:
        """Put a watermark, in seconds of event time, on its way; the newest of several that wait counts."""
        # spec: Chain!ProcessWatermark
        if self.queue and type(self.queue[-1]) is Watermark:
            self.queue.pop()
        self.collect(Watermark(timestamp))

    def emit_status(self, idle: bool) -> None:
        """Put on its way that nothing comes for a while, or that this is over."""
        self.collect(Idleness(idle))

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Put a marker on its way: no operator holds it, with room or without."""
        self.collect(marker)

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
        self._chain.look_outside()

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

    __slots__ = ("_executor", "_is_armed", "_room_mail")

    def __init__(self, chain: OperatorChain) -> None:
        super().__init__(chain, None)
        self._is_armed = False
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

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Give a marker to the task's output, if that wants it and the task was not cancelled."""
        emit = getattr(self._chain.output, "emit_latency_marker", None)
        if emit is not None and not self._chain.cancelled and not self._chain.closed:
            emit(marker)

    @property
    def is_available(self) -> bool:
        """True while the task's output has room and nothing is kept back for it."""
        return not self.queue and self._chain.output.is_available

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
        """Have the output say when it has room again, if it has none. The chain only."""
        if not self._is_armed and not self._chain.output.is_available:
            self._is_armed = True
            self._chain.output.call_when_room(self._has_room)

    def _has_room(self) -> None:
        """Any thread."""
        assert self._executor is not None
        self._executor.try_put(self._room_mail)

    def _look(self) -> None:
        # The chain moves and wakes at the end of every action; there is nothing else to do here.
        self._is_armed = False


class InputLink(Link):
    """The link behind the task's input: the queue of the first operator. Confined.

    After an aligned barrier it takes nothing until the barrier has been worked off, after the end of
    the data nothing but barriers.
    """

    __slots__ = ("overtaking", "refusal")

    def __init__(self, chain: OperatorChain, target: Operator) -> None:
        super().__init__(chain, target)
        self.refusal: str | None = None
        """The reason for which no record is taken; None where records are."""
        self.overtaking: deque[CheckpointBarrier] = deque()
        """Unaligned barriers that the input has emitted and that were not taken yet."""

    def collect(self, record: Any) -> None:
        """Take a record of the input. Raises RuntimeError after a barrier and after the end of the data."""
        if self.refusal is not None:
            raise RuntimeError(f"the input emitted {record!r} {self.refusal}")
        super().collect(record)
        self._chain.work_off_outside()

    def emit_watermark(self, timestamp: float) -> None:
        """Take a watermark of the input, the last one once. Raises RuntimeError as `collect` does."""
        chain = self._chain
        if timestamp == MAX_WATERMARK and chain.time_ended and self.refusal is None:
            # An input that was restored at its end says the end again.
            return
        super().emit_watermark(timestamp)
        chain.time_ended |= timestamp == MAX_WATERMARK

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Take a barrier: an aligned one in its place, an unaligned one before all that waits.

        Neither is taken before the input's call has returned: only then does the input know its position.
        """
        self._chain.check()
        if barrier.options.aligned:
            self.queue.append(barrier)
            self._chain.dirty = True
            if self.refusal is None:
                self.refusal = AFTER_BARRIER
        else:
            self.overtaking.append(barrier)
        self._chain.work_off_outside()


AFTER_BARRIER = "after a barrier, in the same call; a barrier must be the last element of a call"
AFTER_DATA = "after the end of its data"


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

    __slots__ = (
        "_at_work",
        "_depth",
        "_exit",
        "_finished",
        "_first_free",
        "_links",
        "_mail_ended",
        "_on_barrier",
        "_process",
        "_process_batch",
        "_waits_for_room",
        "cancelled",
        "check",
        "closed",
        "contexts",
        "dirty",
        "entry",
        "operators",
        "output",
        "time_ended",
        "uids",
        "waits",
    )

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
        self.time_ended = False
        """`MAX_WATERMARK` is on its way or has left, in this life or in one before: it comes once."""
        self.entry = InputLink(self, self.operators[0])
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
        self._depth = 0
        self._mail_ended = False
        self.contexts: tuple[OperatorContext, ...] = ()

    # -- life ---------------------------------------------------------------------------------

    def setup(
        self,
        executor: Callable[[int], MailboxExecutor],
        clock: Callable[[], float],
        fail: Callable[[BaseException], None],
        on_barrier: Callable[[CheckpointBarrier], None],
    ) -> None:
        """Give each operator its context, with an executor of its own and what ends the task.

        on_barrier: called with each barrier of the input, when all before it has been worked off.
        """
        self.check()
        self._on_barrier = on_barrier
        self._exit.setup(executor(MIN_PRIORITY))
        last = len(self.operators) - 1
        contexts = []
        for position, uid in enumerate(self.uids):
            output = self._exit if position == last else self._links[position + 1]
            admitted = partial(self._admitted, position)
            contexts.append(OperatorContext(uid, position, executor(position), output, clock, admitted, fail))
        self.contexts = tuple(contexts)
        for operator, context in zip(self.operators, contexts, strict=True):
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

        Event time comes to its end first. For each: wait until it has taken all that is on its way to it, end
        its input, wait for what is under way, for timers that had begun, finish it, and wait for its mail.
        Of those that were restored as finished only the timers end. Once the task has failed or was
        cancelled, which any step may bring about, no operator is finished.
        """
        left = [position for position, finished in enumerate(self._finished) if not finished]
        if left and not self.time_ended:
            # spec: Chain!EndOfInput
            self._links[left[0]].queue.append(END_OF_TIME)
            self.time_ended = self.dirty = True
        self.end_data()
        self.work_off()
        for position, (operator, context) in enumerate(zip(self.operators, self.contexts, strict=True)):
            if self._finished[position]:
                yield from self._quiesce_timers(context)
                continue
            # spec: Chain!EndInput
            while (on_its_way := self._links[position].emptied()) is not None:
                yield on_its_way
            if self.closed or self.cancelled:
                return
            under_way = self._call(position, operator.end_input)
            self.work_off()
            if under_way is not None:
                yield under_way
            yield from self._quiesce_timers(context)
            # spec: Chain!Finish
            if self.closed or self.cancelled:
                return
            self._call(position, operator.finish)
            self._finished[position] = True
            self.work_off()
            yield context.executor.submit(_nothing)
            self.work_off()

    def end_data(self) -> None:
        """Take nothing from the input any more but barriers."""
        self.check()
        self.entry.refusal = AFTER_DATA

    def end_mail(self) -> None:
        """From now on a mail that puts mail, such as itself again, just ends: the mailbox is quiesced."""
        self.check()
        self._mail_ended = True

    def quiesce_timers(self) -> Iterator[Future[Any]]:
        """Let no timer begin any more; the caller waits for each future given. Idempotent."""
        self.check()
        for context in self.contexts:
            yield from self._quiesce_timers(context)

    def _quiesce_timers(self, context: OperatorContext) -> Iterator[Future[Any]]:
        timers = context.quiesce_timers()
        if timers is not None:
            yield timers.timers_done()

    def stop(self, failures: Failures) -> None:
        """Let no operator emit any more, and drop what is on its way. Idempotent."""
        self.check()
        if self.closed:
            return
        self.closed = True
        for link in (*self._links, self._exit):
            link.queue.clear()
        for position, operator in enumerate(self.operators):
            if position < len(self.contexts):
                step = f"ending the timers of operator {self.uids[position]!r}"
                failures.run(step, self.contexts[position].shutdown_timers)
            failures.run(f"stopping operator {self.uids[position]!r}", operator.stop)

    def close(self, failures: Failures) -> dict[str, Any]:
        """Stop and close every operator, whatever the others raise; returns the futures to wait for."""
        self.stop(failures)
        closing: dict[str, Any] = {}

        def close(uid: str, operator: Operator) -> None:
            future = operator.close()
            if future is not None:
                closing[uid] = future

        for uid, operator in zip(self.uids, self.operators, strict=True):
            failures.run(f"closing operator {uid!r}", close, uid, operator)
        return closing

    # -- elements -----------------------------------------------------------------------------

    def run(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Call `fn(*args)`, an action of the task, then move what it has emitted."""
        self._depth += 1
        try:
            mail = getattr(fn, "__self__", None)
            result: T = self._run_mail(mail, fn, args) if isinstance(mail, Mail) else fn(*args)
            if self.dirty:
                self.work_off()
            if (self.waits or self.dirty) and not self.cancelled:
                self.wake()
        finally:
            self._depth -= 1
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

    def _call(self, position: int, fn: Callable[..., Any], *args: Any) -> Any:
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
        if kind is CheckpointBarrier:
            queue.popleft()
            self._barrier(element)
            return True
        if kind is LatencyMarker:
            queue.popleft()
            self.contexts[position].output.emit_latency_marker(element)
            return True
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

    def _barrier(self, barrier: CheckpointBarrier) -> None:
        if self.entry.refusal is AFTER_BARRIER:
            self.entry.refusal = None
        self._on_barrier(barrier)

    def take_overtaking(self) -> None:
        """Take the barriers that pass what waits, when the input's call that emitted them has returned."""
        overtaking = self.entry.overtaking
        while overtaking:
            self._on_barrier(overtaking.popleft())

    def _admitted(self, position: int) -> None:
        self.check()
        self._at_work[position] = NOTHING

    def work_off_outside(self) -> None:
        """Move what the input emits outside of an action, as a thread that holds the task's lock does."""
        if self._depth == 0:
            self.take_overtaking()
            self.work_off()
            self.look_outside()

    def look_outside(self) -> None:
        """Wake who has begun to wait outside of an action: nobody else would look for room then."""
        if self._depth == 0 and not self.cancelled:
            self.wake()

    # -- checkpoints --------------------------------------------------------------------------

    def snapshot(self, barrier: CheckpointBarrier, check: Callable[[], None]) -> dict[str, OperatorSnapshot]:
        """The state of all operators and what is on its way to them, by `uid`.

        `check()` raises `CheckpointDeclined` when the checkpoint is no longer wanted. What an operator raises
        declines it, and so does an operator that fails the task; those that have heard of it hear of that.
        """
        self.check()
        heard = []
        asked = 0
        try:
            if barrier.options.aligned:
                # What a restore has left in front of an operator must be in it before it prepares.
                self.work_off()
            for position, operator in enumerate(self.operators):
                asked = position
                heard.append(position)
                self._call(position, operator.prepare_snapshot, barrier)
                if barrier.options.aligned:
                    self.work_off()
            check()
            states = []
            for asked, operator in enumerate(self.operators):  # noqa: B007
                states.append(operator.snapshot_state(barrier))
            check()
            if self.closed:
                # What was on its way is dropped, and operators that were stopped have let go of their rows.
                raise CheckpointDeclined(barrier.id, "the task had failed before it was taken")
        except Exception as error:
            # spec: Chain!Decline
            for position in heard:
                self._call(position, self.operators[position].notify_checkpoint_aborted, barrier.id)
            if isinstance(error, CheckpointDeclined):
                raise
            reason = f"operator {self.uids[asked]!r} raised {type(error).__name__}: {error}"
            raise CheckpointDeclined(barrier.id, reason) from error
        return {
            uid: OperatorSnapshot(state, self._pending(position), self._finished[position])
            for position, (uid, state) in enumerate(zip(self.uids, states, strict=True))
        }

    def _pending(self, position: int) -> tuple[Any, ...]:
        at_work = self._at_work[position]
        waiting = (
            element.rest() if type(element) is RowBatch else element
            for element in self._links[position].queue
            if type(element) not in (CheckpointBarrier, LatencyMarker)
        )
        return tuple(waiting) if at_work is NOTHING else (at_work, *waiting)

    def notify_complete(self, checkpoint_id: int) -> None:
        """Tell every operator that a checkpoint is complete."""
        self.check()
        for position, operator in enumerate(self.operators):
            self._call(position, operator.notify_checkpoint_complete, checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Tell every operator that a checkpoint will not complete."""
        self.check()
        for position, operator in enumerate(self.operators):
            self._call(position, operator.notify_checkpoint_aborted, checkpoint_id)


def uid_of(position: int, operator: Operator) -> str:
    """The operator's `uid`, or one made of its position and its class."""
    if not isinstance(operator, Operator):
        raise TypeError(f"operators[{position}]={operator!r}: must be an Operator")
    if type(operator).process is Operator.process:
        raise TypeError(f"operators[{position}]={operator!r}: its class must have a method `process`")
    return f"{position}:{type(operator).__name__}" if operator.uid is None else operator.uid


def _nothing() -> None:
    """The last mail of an operator: when it runs, all before it has run."""
