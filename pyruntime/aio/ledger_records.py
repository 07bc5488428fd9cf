"""Records the results of a task's calls in a ledger, and lets each go on when it is durable.

Confined to the mailbox thread. The idea is that of write-ahead logging (ARIES, 1992), with results for pages.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, time_ns
from typing import Any, NamedTuple

from pillarbox.aio.call_flow import CallFlow, CallHolds
from pillarbox.aio.calls import ATTEMPT, COST, INPUT, KEY, Call, TakesResults
from pillarbox.aio.errors import Failed
from pillarbox.aio.function import Parsed
from pillarbox.aio.held_bytes import NOT_WEIGHED, HeldBytes
from pillarbox.aio.ledger_lookup import MisfitError
from pillarbox.ledger.errors import LedgerClosedError, LedgerConflictError
from pillarbox.ledger.format import ERROR, VALUE, Record
from pillarbox.ledger.reader import FoundVector
from pillarbox.ledger.writer import Commit, LedgerWriter

log = logging.getLogger("pillarbox")

COMMITS_PER_WINDOW = 4
"""A commit waits for no more results than this part of the window, so that rows go on coming meanwhile."""


class KeptForms(NamedTuple):
    """The forms in which a ledger keeps results.

    prepare: makes of a result what is kept; None for the result itself. vectors_of: makes of results that are
    vectors of one block a matrix, and says whether each is in a tuple; gives None for any others.
    """

    prepare: Callable[[Any], Any] | None = None
    vectors_of: Callable[[list[Any]], tuple[Any, bool] | None] | None = None


AS_THEY_ARE = KeptForms()


class LedgerRecords:
    """The results that wait to be durable. `committed` and `failed` are mail of `writer`.

    accepts_errors: the failure of a row is its result for good. result_of: makes of a record the result of a
    row. conflict: the error of a row whose key another one has, with another input. weights: counts results
    that wait, as those that wait for their turn; None where no bytes are limited. leave: completes rows whose
    results were counted. ended: rows have left, and those that have joined their calls get their results;
    None where no row waits for another.
    """

    __slots__ = (
        *("writer", "_accepts_errors", "_conflict", "_ended", "_flow", "_forms", "_holds", "_is_closed"),
        *("_kept", "_last", "_leave", "_most", "_queue", "_result_of", "_since", "_weights"),
    )

    def __init__(
        self,
        flow: CallFlow,
        writer: LedgerWriter,
        forms: KeptForms,
        holds: CallHolds,
        *,
        accepts_errors: bool,
        result_of: Callable[[Record | FoundVector], Any],
        conflict: Callable[[Call, bytes], LedgerConflictError],
        weights: HeldBytes | None,
        leave: TakesResults,
        ended: TakesResults | None,
    ) -> None:
        self.writer = writer
        self._queue = writer.queue
        self._flow = flow
        self._forms = forms
        self._holds = holds
        self._accepts_errors = accepts_errors
        self._result_of = result_of
        self._conflict = conflict
        self._weights, self._leave = weights, leave
        self._ended = ended
        # What is not durable yet, in order: the last one's number, calls, their results, seconds of each.
        self._kept: deque[tuple[int, list[Call], list[Any], float]] = deque()
        # The number of the last result that the writer has got.
        self._last = 0
        self._most, self._since = self._most_since_hurry(), 0
        self._is_closed = False

    def __bool__(self) -> bool:
        """Return True while results wait for the disk."""
        return bool(self._kept)

    def __len__(self) -> int:
        """Rows whose results wait for the disk."""
        return sum(len(calls) for _, calls, _, _ in self._kept)

    def unsaved(self) -> dict[Call, tuple[Any, float]]:
        """The results that are not durable yet, and the seconds they took, by the calls that gave them."""
        # What is to be parsed has no form in a snapshot: such a row is called again.
        return {
            call: (result, latency)
            for _, calls, results, latency in self._kept
            for call, result in zip(calls, results, strict=True)
            if type(result) is not Parsed
        }

    def record(self, call: Call, result: Any, called: Call | None = None) -> None:
        """Let the result of a row go on when it is durable. called: the row that was called for this one.

        What stands for a time-out is an answer of none, so that it is not kept.
        """
        kind, value, kept = VALUE, result, result
        if type(result) is Failed:
            # A row whose retry was cut off has been paid for; a replay calls it again like one that failed.
            was_paid = call.attempt > 0 and not self._accepts_errors
            if result.not_called and not was_paid:
                self._finish(call, result)
                return
            kind, kept = ERROR, dict(result.info.told())
        elif (called or call).error is not None:
            self._finish(call, result)
            return
        elif type(result) is Parsed:
            value, kept = result.value, result.kept
        elif self._forms.prepare is not None:
            kept = self._forms.prepare(result)
        weights = self._weights
        if weights is not None and type(value) not in NOT_WEIGHED:
            if weights.light:
                weights.light -= 1
            else:
                weights.weigh(call, value)
        # spec: Ledger!Answer
        latency, queue = self._flow.clock() - call.began if call.attempt else 0.0, self._queue
        answer = (call.key, kind, kept, call.attempt, latency, call.cost, time_ns() // 1000, call.input)
        with queue.lock:
            queue.answers.append(answer)
            is_first = len(queue.answers) == 1
        self._last += 1
        self._kept.append((self._last, [call], [result], latency))
        self._since += 1
        if is_first:
            self._tell_writer()
        if self._since >= self._most or not self._flow.waiting or monotonic() > queue.behind_from:
            self._look_at_disk()

    def _tell_writer(self) -> None:
        """Tell the writer's thread that an answer waits. Raises what ended the writer."""
        try:
            self.writer.expect()
        except LedgerClosedError as error:
            raise self.writer.failure or error from None

    def record_all(self, calls: list[Call], results: list[Any]) -> bool:
        """As `record` for rows called together whose results are one block; returns False for any others."""
        vectors = None if self._forms.vectors_of is None else self._forms.vectors_of(results)
        if vectors is None:
            return False
        # spec: Ledger!Answer
        matrix, in_tuple = vectors
        first = calls[0]
        latency = self._flow.clock() - first.began if first.attempt else 0.0
        try:
            self._last = self.writer.append_vectors(
                KEY.of(calls),
                matrix,
                in_tuple=in_tuple,
                inputs=INPUT.of(calls),
                attempts=ATTEMPT.of(calls),
                latency=latency,
                costs=COST.of(calls),
            )
        except LedgerClosedError as error:
            raise self.writer.failure or error from None
        if self._weights is not None:
            self._weights.weigh_all(calls, results)
        self._kept.append((self._last, calls, results, latency))
        self._since += len(calls)
        if self._since >= self._most or not self._flow.waiting or monotonic() > self._queue.behind_from:
            self._look_at_disk()
        return True

    def record_late(self, call: Call, result: Any, cost: float) -> None:
        """An answer came after its time-out: the row may have it when it is called again, or on a replay."""
        try:
            latency = self._flow.clock() - call.began if call.attempt else 0.0
            if type(result) is Parsed:
                result = result.kept
            elif self._forms.prepare is not None:
                result = self._forms.prepare(result)
            # spec: Ledger!Answer
            self._last = self.writer.append(
                call.key, result, input=call.input, attempts=call.attempt, latency=latency, cost=cost
            )
        except Exception as error:
            log.warning("a late answer was not kept: %s: %s", type(error).__name__, error)

    def _most_since_hurry(self) -> int:
        """Results after which those so far are to be committed."""
        return max(1, min(self._flow.window // COMMITS_PER_WINDOW, self._queue.answers_of_commit))

    def _look_at_disk(self) -> None:
        writer = self.writer
        if self._since >= self._most or not self._flow.waiting:
            # Slots are idle, or will be: what fills the window is that results are not durable.
            self._since = 0
            writer.hurry()
        if not self._holds.by_disk and writer.is_behind:
            # A slow disk costs time, not more calls after a kill.
            self._holds.set_disk(True)

    def _finish(self, call: Call, result: Any) -> None:
        """The result of a row may leave, and that of those that have joined its call."""
        self._flow.complete(call, result)
        if self._ended is not None:
            self._ended((call,), (result,))

    def committed(self, commit: Commit) -> None:
        """Let the results go on that have become durable."""
        # spec: Ledger!Emit
        kept, adopted = self._kept, commit.adopted
        calls: list[Call] = []
        results: list[Any] = []
        while kept and kept[0][0] <= commit.through and not self._is_closed:
            last, some, given, _ = kept.popleft()
            calls += some
            results += given
            if adopted:
                for place in range(-len(some), 0):
                    if (number := last + 1 + place) in adopted:
                        # That of a process which parses otherwise may not fit: then this row has its own.
                        with suppress(MisfitError):
                            results[place] = self._result_of(adopted[number])
        if Parsed in {*map(type, results)}:
            results = [result.value if type(result) is Parsed else result for result in results]
        if not self._is_closed:
            self._leave(calls, results)
        if self._ended is not None and not self._is_closed:
            self._ended(calls, results)
        self._most = self._most_since_hurry()
        if self._holds.by_disk and not self._is_closed and not self.writer.is_behind:
            self._holds.set_disk(False)

    def failed(self, error: BaseException) -> None:
        """End the job: results cannot be made durable any more."""
        if self._is_closed:
            return
        if isinstance(error, LedgerConflictError):
            mine = [call for _, calls, _, _ in self._kept for call in calls if call.key == error.key]
            if mine:
                error = self._conflict(mine[0], error.other)
        self._flow.stop(error)

    def stop(self) -> None:
        """Let nothing go on any more."""
        self._is_closed = True
