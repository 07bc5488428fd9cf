"""The session alone, step by step: what it holds back until a record is durable, or another attempt ends."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from pillarbox import CallFailed, Options
from pillarbox.aio import ledger_session
from pillarbox.aio.calls import Call
from pillarbox.aio.errors import Failed, describe
from pillarbox.aio.ledger_scope import scope_of
from pillarbox.aio.meter import Meter
from pillarbox.aio.options import Intervals
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.shared_calls import WAITING
from pillarbox.kernel import OrderedQueue, TaskMailbox
from pillarbox.ledger import Ledger
from pillarbox.ledger.keys import execution_id
from pillarbox.ledger.lease import Lease
from pillarbox.ledger.writer import Commit
from tests.aio.unit.intervals import options_with
from tests.aio.unit.virtual import play


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger whose leases nobody loses for not renewing them: no test here takes its time."""
    monkeypatch.setattr(Ledger, "lease", partialmethod(Ledger.lease, stalled_after=math.inf))
    return Ledger(str(tmp_path / "ledger"))


class HeldWriter:
    """A writer whose records are durable, and which is behind, when the test says so."""

    failure = None
    is_behind = False
    lease: Lease | None = None

    def __init__(self, on_commit: Callable[[Commit], None]) -> None:
        self.commit = on_commit
        self.appended = 0

    def append(self, key: bytes, value: Any, **more: Any) -> int:
        self.appended += 1
        return self.appended

    def hold(self, lease: Lease) -> None:
        """Renews nothing: the test lets go of it."""
        self.lease = lease

    def hurry(self) -> None:
        """Changes nothing: the test says when."""


class Attempt:
    """The session of one attempt of a task, its writer, and what it has told its operator."""

    def __init__(
        self,
        ledger: Ledger,
        monkeypatch: pytest.MonkeyPatch,
        intervals: Intervals = Options.intervals,
        **options: Any,
    ) -> None:
        def make(self: Ledger, *args: Any, on_commit: Callable[[Commit], None], **more: Any) -> HeldWriter:
            writers.append(HeldWriter(on_commit))
            return writers[-1]

        writers: list[HeldWriter] = []
        named = dataclasses.replace(ledger, uid="uid", run="run")
        self.options = options_with(intervals, ledger=named, **options)
        self.session = ledger_session.LedgerSession(self.options, "run", execution=execution_id())
        self.mailbox = TaskMailbox()
        self.left: list[tuple[Any, Any]] = []
        self.holds: list[bool] = []
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "writer", make)
            scheduler = CallScheduler(
                self.options,
                Meter(),
                asyncio.get_running_loop(),
                name="fn",
                queue=OrderedQueue(self.options.window),
                complete=self._leaves,
                stop=unexpected,
                finished=lambda: 0,
                session=self.session,
            )
            self.waiting = scheduler.waiting
            flow = scheduler.flow()._replace(hold=self.holds.append)
            self.session.bind(flow, self.mailbox, None, None)
        (self.writer,) = writers

    def _leaves(self, call: Call, result: Any) -> None:
        self.left.append((call.row, result))

    def comes(self, row: Any) -> tuple[Call, Any]:
        """A row is looked up; returns its call, which waits if it is to be made, and what was found."""
        call = Call(row, 0)
        if (found := self.session.lookup(call)) is None:
            self.waiting.append(call)
        return call, found

    def durable(self, through: int) -> list[tuple[Any, Any]]:
        """The writer says what is durable; returns what has left since the beginning."""
        self.writer.commit(Commit(through, {}))
        while (mail := self.mailbox.try_take()) is not None:
            mail.run()
        return self.left

    def end(self) -> None:
        """Ends at once, and lets go of its lease."""
        self.session.stop()
        if self.writer.lease is not None:
            self.writer.lease.release()


def unexpected(*args: object) -> None:
    raise AssertionError(f"called with {args}")


@pytest.mark.contract(
    "A result leaves when its own record is durable, and not one record before.",
    convicts=["emitted_before_durable", "failure_not_recorded"],
)
def test_a_result_leaves_when_its_own_record_is_durable_and_not_before(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        attempt = Attempt(ledger, monkeypatch)
        for row in range(6):
            call = Call(row, 0)
            call.key, call.input = row.to_bytes(16, "big"), b""
            failed = Failed(describe(CallFailed(1, ValueError(row)), 0.0))
            attempt.session.record(call, failed if row == 3 else row)
        assert attempt.writer.appended == 6 and attempt.left == []
        for through in (0, 1, 2, 2, 5, 6):
            assert len(attempt.durable(through)) == through
        assert [type(result) for _, result in attempt.left] == [int, int, int, Failed, int, int]

    play(script)


@pytest.mark.contract(
    "Rows that have joined one that waits for another attempt's answer leave with it.",
    convicts=["joined_rows_wait"],
)
def test_rows_that_have_joined_one_that_waits_for_anothers_answer_leave_with_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        first, second = (Attempt(dataclasses.replace(ledger, key=["id"]), monkeypatch) for _ in range(2))
        rows = [{"id": 1}, {"id": 2}]
        for row in rows:
            assert first.comes(row)[1] is None
        assert first.session.may_call()
        # The second one has equal rows, and the calls are the first one's.
        (one, found), (_, other_found) = [second.comes(row) for row in rows]
        assert found is None and other_found is None
        assert second.comes(rows[0])[1] is second.comes(rows[0])[1] is WAITING
        assert second.holds == [True] and not second.session.may_call()
        await asyncio.sleep(10 * ledger_session.POLL_INTERVAL_S)
        assert second.left == []
        assert one.key is not None and one.input is not None
        with ledger.writer(scope_of(second.options.ledger, "run")) as kept:
            kept.append(one.key, "kept", input=one.input)
        await asyncio.sleep(10 * ledger_session.POLL_INTERVAL_S)
        assert second.left == [(rows[0], "kept")] * 3
        assert [call.row for call in second.waiting] == rows[1:]
        # A row that comes now is found, and none is left that it could join.
        assert second.comes(rows[0])[1] == ("kept",)
        for attempt in (first, second):
            attempt.end()

    play(script)


@pytest.mark.contract(
    "A disk that has caught up lets no call begin while another attempt has the lease.",
    convicts=["hold_of_lease_released"],
)
def test_a_disk_that_has_caught_up_lets_no_call_begin_while_another_attempt_has_the_lease(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        slow = Attempt(ledger, monkeypatch, Intervals(lease_check=0.0))
        call, _ = slow.comes(1)
        slow.waiting.clear()
        assert slow.session.may_call() and slow.holds == []
        slow.writer.is_behind = True
        slow.session.record(call, "late")
        assert slow.holds == [True]
        # It is taken for hung, and the lease is another's.
        rival = Attempt(ledger, monkeypatch, Intervals(hung_after=0.0, lease_check=0.0))
        assert rival.comes(1)[1] is None and rival.holds == []
        assert rival.session.may_call() and not slow.session.may_call()
        slow.writer.is_behind = False
        assert slow.durable(1) == [(1, "late")]
        assert slow.holds[-1] and not slow.session.may_call()
        # Once the other one ends, nothing holds it back any more.
        rival.end()
        await asyncio.sleep(10 * ledger_session.POLL_INTERVAL_S)
        assert not slow.holds[-1] and slow.session.may_call()
        slow.end()

    play(script)
