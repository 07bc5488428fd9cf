"""The operators of a task, one behind the other, and the elements on their way between them.

Confined to the mailbox thread, or to the holder of the lock where a task shares one with a legacy source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from pillarbox.kernel import MAX_PRIORITY, Mail, MailboxClosedError
from pillarbox.mailbox import MailboxExecutor
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointDeclined, OperatorSnapshot
from pillarbox.task.failures import Failures
from pillarbox.task.link import AFTER_BARRIER, AFTER_DATA, ChainState, Entry, Exit, Link
from pillarbox.task.operator import Operator, OperatorContext
from pillarbox.task.output import MAX_WATERMARK, Idleness, TaskOutput, Watermark
from pillarbox.task.timers import ProcessingTimeService

log = logging.getLogger("pillarbox")

NOTHING: Final = object()


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

    operators: at least one, with different `uid`s. check: raises for a thread that must not touch the
    chain. on_barrier: called with each barrier of the input, when all before it has been worked off.
    Raises TypeError for what is no operator, ValueError for no operators, one that stands there twice, or
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
        "_state",
        "contexts",
        "entry",
        "operators",
        "uids",
    )

    def __init__(
        self,
        operators: Sequence[Operator],
        output: TaskOutput,
        *,
        check: Callable[[], None],
        on_barrier: Callable[[CheckpointBarrier], None],
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
        self._state = ChainState(output, check, self._work_off_outside)
        self._on_barrier = on_barrier
        self.entry = Entry(self._state)
        self._exit = Exit(self._state)
        self._links: list[Link] = [self.entry, *(Link(self._state) for _ in self.operators[1:])]
        self._process = tuple(operator.process for operator in self.operators)
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
        make_timers: Callable[[MailboxExecutor], ProcessingTimeService],
    ) -> None:
        """Give each operator its context; `executor(priority)` makes its executor."""
        self._state.check()
        last = len(self.operators) - 1
        contexts = []
        for position in range(len(self.operators)):
            output = self._exit if position == last else self._links[position + 1]
            context = OperatorContext(
                self.uids[position],
                position,
                executor(position),
                output,
                make_timers,
                partial(self._admitted, position),
            )
            contexts.append(context)
        self.contexts = tuple(contexts)
        for operator, context in zip(self.operators, contexts, strict=True):
            operator.setup(context)

    def open(self, snapshots: Mapping[str, OperatorSnapshot] | None = None) -> None:
        """Restore and open the operators, from the output to the input.

        Raises ValueError if `snapshots` has a `uid` that the chain has not: its state would be lost.
        """
        self._state.check()
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
                self._state.dirty |= bool(snapshot.pending)
            self._call(position, operator.open)

    def finishing(self) -> Iterator[Future[Any]]:
        """Finish the operators, from the input to the output; the caller waits for each future given.

        For each: end its input, wait for what is under way, let no more timers begin, wait for those that
        had begun, finish it, and wait for the mail that it had put. Event time comes to its end first.
        Those that were restored as finished keep what they have emitted then: only their timers end.
        """
        left = [position for position, finished in enumerate(self._finished) if not finished]
        if left and not any(link.time_ended for link in self._links[: left[0] + 1]):
            self._links[left[0]].queue.append(Watermark(MAX_WATERMARK))
            self._state.dirty = True
        self.end_data()
        self.work_off()
        for position, (operator, context) in enumerate(zip(self.operators, self.contexts, strict=True)):
            if self._finished[position]:
                yield from self._quiesce_timers(context)
                continue
            under_way = self._call(position, operator.end_input)
            self.work_off()
            if under_way is not None:
                yield under_way
            yield from self._quiesce_timers(context)
            self._call(position, operator.finish)
            self._finished[position] = True
            self.work_off()
            yield context.executor.submit(_nothing)
            self.work_off()

    def end_data(self) -> None:
        """Take nothing from the input any more but barriers."""
        self._state.check()
        self.entry.refusal = AFTER_DATA

    def end_mail(self) -> None:
        """From now on a mail that puts mail, such as itself again, just ends: the mailbox is quiesced."""
        self._state.check()
        self._mail_ended = True

    def quiesce_timers(self) -> Iterator[Future[Any]]:
        """Let no timer begin any more; the caller waits for each future given. Idempotent."""
        self._state.check()
        for context in self.contexts:
            yield from self._quiesce_timers(context)

    def _quiesce_timers(self, context: OperatorContext) -> Iterator[Future[Any]]:
        timers = context.quiesce_timers()
        if timers is not None:
            yield timers.timers_done()

    def close(self, failures: Failures) -> None:
        """Close every operator, whatever the others raise, and drop what is on its way."""
        self._state.check()
        self._state.closed = True
        for link in (*self._links, self._exit):
            link.queue.clear()
        for position, operator in enumerate(self.operators):
            if position < len(self.contexts):
                step = f"ending the timers of operator {self.uids[position]!r}"
                failures.run(step, self.contexts[position].shutdown_timers)
            failures.run(f"closing operator {self.uids[position]!r}", operator.close)

    # -- elements -----------------------------------------------------------------------------

    def act(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call `fn(*args)`, an action of the task, then move what it has emitted."""
        self._depth += 1
        try:
            mail = getattr(fn, "__self__", None)
            result = self._run_mail(mail, fn, args) if isinstance(mail, Mail) else fn(*args)
            if self._state.dirty:
                self.work_off()
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
        """Move elements until none is left behind the operator that is at work, if one is.

        Not checked for its thread, as it ends every action: what runs the actions has checked it.
        """
        state = self._state
        first = self._first_free
        links = self._links
        at_work = self._at_work
        last = len(links) - 1
        position = last
        while position >= first and not state.paused:
            queue = links[position].queue
            if not queue:
                position -= 1
                continue
            element = queue.popleft()
            if type(element) is CheckpointBarrier:
                self._barrier(element)
                continue
            at_work[position] = element
            self._first_free = position + 1
            try:
                if type(element) is Watermark:
                    self.operators[position].process_watermark(element.timestamp)
                elif type(element) is Idleness:
                    self.operators[position].process_status(element.idle)
                else:
                    self._process[position](element)
            finally:
                at_work[position] = NOTHING
                self._first_free = first
            if position != last:
                position += 1
        if first == 0 and not state.paused:
            state.dirty = False

    def pause(self) -> None:
        """Let nothing move, and nothing leave the task, until `resume`."""
        self._state.check()
        self._state.paused = True

    def resume(self) -> None:
        """Let everything move again, what was kept back first."""
        self._state.check()
        self._state.paused = False
        self._exit.work_off()
        self.work_off()

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
        self._state.check()
        self._at_work[position] = NOTHING

    def _work_off_outside(self) -> None:
        # A legacy source emits from its own thread, under the lock, where no action of the task ends.
        if self._depth == 0:
            self.take_overtaking()
            self.work_off()

    # -- checkpoints --------------------------------------------------------------------------

    def snapshot(self, barrier: CheckpointBarrier, check: Callable[[], None]) -> dict[str, OperatorSnapshot]:
        """The state of all operators and what is on its way to them, by `uid`.

        `check()` raises `CheckpointDeclined` when the checkpoint is no longer wanted, which may come about
        while the chain works off what the operators emit. Raises what an operator raises; those that have
        heard of a checkpoint that is declined hear of its end too.
        """
        self._state.check()
        heard = []
        try:
            if barrier.options.aligned:
                # What a restore has left in front of an operator must be in it before it prepares.
                self.work_off()
            for position, operator in enumerate(self.operators):
                heard.append(position)
                self._call(position, operator.prepare_snapshot, barrier)
                if barrier.options.aligned:
                    self.work_off()
            check()
            states = [operator.snapshot_state(barrier) for operator in self.operators]
            check()
        except CheckpointDeclined:
            for position in heard:
                self._call(position, self.operators[position].notify_checkpoint_aborted, barrier.id)
            raise
        return {
            uid: OperatorSnapshot(state, self._pending(position), self._finished[position])
            for position, (uid, state) in enumerate(zip(self.uids, states, strict=True))
        }

    def _pending(self, position: int) -> tuple[Any, ...]:
        at_work = self._at_work[position]
        waiting = (
            element for element in self._links[position].queue if type(element) is not CheckpointBarrier
        )
        return tuple(waiting) if at_work is NOTHING else (at_work, *waiting)

    def notify_complete(self, checkpoint_id: int) -> None:
        """Tell every operator that a checkpoint is complete."""
        self._state.check()
        for position, operator in enumerate(self.operators):
            self._call(position, operator.notify_checkpoint_complete, checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Tell every operator that a checkpoint will not complete."""
        self._state.check()
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
