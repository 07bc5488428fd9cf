"""The operators of a task, one behind the other, and the elements on their way between them.

Confined to the mailbox thread, or to the holder of the lock where a task shares one with a legacy source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from pillarbox.mailbox import MailboxExecutor
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointDeclined, OperatorSnapshot
from pillarbox.task.failures import Failures
from pillarbox.task.link import AFTER_BARRIER, AFTER_DATA, ChainState, Entry, Exit, Link
from pillarbox.task.operator import Operator, OperatorContext
from pillarbox.task.output import MAX_WATERMARK, Idleness, TaskOutput, Watermark
from pillarbox.task.timers import ProcessingTimeService

NOTHING: Final = object()


class OperatorChain:
    """Runs elements through operators. Confined.

    1. The operator at position i gets elements from link i and emits into link i + 1; the last one emits into
       the task's output. Elements are moved when no operator in front is at work, those nearest to the output
       first, so a link holds what one call has emitted at most.
    2. An operator that yields is at work. While it is, only the links behind it move: nothing passes it.
       Its executor has its position as priority, so only mail of its own and of those behind runs.
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
        "_first_free",
        "_links",
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
        self.entry = Entry(self._state, on_barrier)
        self._exit = Exit(self._state)
        self._links: list[Link] = [self.entry, *(Link(self._state) for _ in self.operators[1:])]
        self._process = tuple(operator.process for operator in self.operators)
        self._at_work: list[Any] = [NOTHING] * len(self.operators)
        self._first_free = 0
        self._depth = 0
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
        for uid, operator, link in zip(self.uids[::-1], self.operators[::-1], self._links[::-1], strict=True):
            snapshot = known.get(uid)
            if snapshot is not None:
                operator.restore_state(snapshot.state)
                # In front of what an upstream `open` will emit.
                link.queue.extend(snapshot.pending)
                self._state.dirty |= bool(snapshot.pending)
            operator.open()

    def finishing(self) -> Iterator[Future[Any]]:
        """Finish the operators, from the input to the output; the caller waits for each future given.

        For each: end its input, wait for what is under way, let no more timers begin, wait for those that
        had begun, finish it, and wait for the mail that it had put. Event time comes to its end first.
        """
        self._collect_at_entry(Watermark(MAX_WATERMARK))
        self.end_data()
        self.work_off()
        for operator, context in zip(self.operators, self.contexts, strict=True):
            under_way = operator.end_input()
            self.work_off()
            if under_way is not None:
                yield under_way
            yield from self._quiesce_timers(context)
            operator.finish()
            self.work_off()
            yield context.executor.submit(_nothing)
            self.work_off()

    def end_data(self) -> None:
        """Take nothing from the input any more but barriers."""
        self._state.check()
        self.entry.refusal = AFTER_DATA

    def quiesce_timers(self) -> Iterator[Future[Any]]:
        """Let no timer begin any more; the caller waits for each future given. Idempotent."""
        self._state.check()
        for context in self.contexts:
            yield from self._quiesce_timers(context)

    def _quiesce_timers(self, context: OperatorContext) -> Iterator[Future[Any]]:
        timers = context.used_timers
        if timers is not None:
            timers.quiesce()
            yield timers.timers_done()

    def close(self, failures: Failures) -> None:
        """Close every operator, whatever the others raise, and drop what is on its way."""
        self._state.check()
        self._state.closed = True
        for link in (*self._links, self._exit):
            link.queue.clear()
        for position, operator in enumerate(self.operators):
            if position < len(self.contexts):
                timers = self.contexts[position].used_timers
                if timers is not None:
                    failures.run(f"ending the timers of operator {self.uids[position]!r}", timers.shutdown)
            failures.run(f"closing operator {self.uids[position]!r}", operator.close)

    # -- elements -----------------------------------------------------------------------------

    def act(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call `fn(*args)`, an action of the task, then move what it has emitted."""
        self._depth += 1
        try:
            result = fn(*args)
            if self._state.dirty:
                self.work_off()
        finally:
            self._depth -= 1
        return result

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

    def _collect_at_entry(self, element: Any) -> None:
        self.entry.queue.append(element)
        self._state.dirty = True

    def _admitted(self, position: int) -> None:
        self._state.check()
        self._at_work[position] = NOTHING

    def _work_off_outside(self) -> None:
        # A legacy source emits from its own thread, under the lock, where no action of the task ends.
        if self._depth == 0:
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
            for operator in self.operators:
                heard.append(operator)
                operator.prepare_snapshot(barrier)
                if barrier.options.aligned:
                    self.work_off()
            check()
            states = [operator.snapshot_state(barrier) for operator in self.operators]
            check()
        except CheckpointDeclined:
            for operator in heard:
                operator.notify_checkpoint_aborted(barrier.id)
            raise
        return {
            uid: OperatorSnapshot(state, self._pending(position))
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
        for operator in self.operators:
            operator.notify_checkpoint_complete(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Tell every operator that a checkpoint will not complete."""
        self._state.check()
        for operator in self.operators:
            operator.notify_checkpoint_aborted(checkpoint_id)


def uid_of(position: int, operator: Operator) -> str:
    """The operator's `uid`, or one made of its position and its class."""
    if not isinstance(operator, Operator):
        raise TypeError(f"operators[{position}]={operator!r}: must be an Operator")
    if type(operator).process is Operator.process:
        raise TypeError(f"operators[{position}]={operator!r}: its class must have a method `process`")
    return f"{position}:{type(operator).__name__}" if operator.uid is None else operator.uid


def _nothing() -> None:
    """The last mail of an operator: when it runs, all before it has run."""
