"""Random lives of the shipped operator in a real task: any order of answers, snapshots, kills, restores.

`OperatorMachine` is the machine; here is what it needs to know of the async operator, and the ledger, whose
writer does its work at the machine's command, on a disk that loses with the power what was not synced.
"""

from __future__ import annotations

import contextvars
import logging
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from pillarbox import Batch, Buffer, Options, Retry, RetryBudget
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.errors import Failed
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.keys import execution_id
from pillarbox.ledger.writer import LedgerWriter
from pillarbox.task import Operator
from pillarbox.testing.operator_machine import OperatorMachine
from tests.search import examples

SCOPE = Scope.of("run", "uid", {"key": None})
EXECUTION = execution_id("lives")


PAUSE_S = 2.0
TOLERANCE_S = 0.01
LONG_S = 1e9


class Lives(OperatorMachine):
    """One async operator; what it is asked for is the same in all lives, its sizes are not."""

    def operators(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Operator]:
        if self.lives == 1:
            self.ordered, self.alike = draw(st.booleans()), draw(st.booleans())
            self.max_attempts = draw(st.sampled_from([3, 2, 1]))
            self.timeout = draw(st.sampled_from([None, 4.0, 15.0]))
            self.max_retries = draw(st.sampled_from([None, None, 2, 0]))
        return [self.operator("only", draw)]

    def operator(
        self, uid: str, draw: Callable[[st.SearchStrategy[Any]], Any], **more: Any
    ) -> AsyncWaitOperator:
        self.capacity = capacity = draw(st.integers(1, 4))
        attempts = self.max_attempts or 1
        options = Options(
            ordered=self.ordered,
            capacity=capacity,
            buffer=Buffer(capacity + draw(st.integers(0, 4))),
            errors="column",
            timeout=self.timeout,
            retry=Retry(
                attempts, initial=PAUSE_S, maximum=PAUSE_S, jitter=False, max_outage=0.0, budget=self.budget()
            ),
            batch=more.pop("batch", None),
        )
        fn = self.service(uid) if options.batch is None else self.batch_service(uid)
        return AsyncWaitOperator(
            fn, options, loop=self.loop, context=contextvars.copy_context(), uid=uid, **more
        )

    def budget(self) -> RetryBudget | None:
        """A budget that is never filled again."""
        if self.max_retries is None:
            return None
        return RetryBudget(0.0, self.max_retries, seconds=LONG_S)

    def called(self, uid: str, number: int) -> None:
        running = sum(call.uid == uid and not call.is_cancelled for call in self.calls)
        if running >= self.capacity:
            self.disagree("call", f"{running + 1} calls", f"{self.capacity} at most")
        if number in self.counted_output:
            self.disagree("call", f"row {number} is called", "its result has left")

    def seen(self, record: tuple[Any, Any]) -> int:
        call, result = record
        number = self.number_of(call.row)
        if type(result) is Failed:
            self.check_failure("only", number, result)
        elif result != self.books.answers.get(("only", number)):
            self.disagree("result", result, self.books.answers.get(("only", number)))
        return number

    def check_failure(self, uid: str, number: int, result: Failed) -> None:
        """A row fails for good after all of its attempts, those before a snapshot included, or in time."""
        failures = self.books.failures[uid, number]
        if result.info.type == "CallTimeout":
            passed = self.loop.time() - self.books.begun.get((uid, number), 0.0)
            if self.timeout is None or passed < self.timeout - TOLERANCE_S:
                self.disagree("timeout", f"row {number} after {passed:g} s", f"{self.timeout} s")
        elif failures != self.max_attempts and not self.has_used_budget(uid, number):
            self.disagree("failure", f"row {number} after {failures} calls", f"{self.max_attempts} calls")

    def has_used_budget(self, uid: str, number: int) -> bool:
        """Return True if other rows have failed so often that none of the budget was left for this one."""
        if self.max_retries is None or not self.books.failures[uid, number]:
            return False
        return sum(self.books.failures.values()) > self.max_retries


class BatchLives(Lives):
    """Rows are called in batches, of another size in each life."""

    def operators(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Operator]:
        if self.lives == 1:
            self.ordered, self.alike = draw(st.booleans()), draw(st.booleans())
            self.max_attempts = draw(st.integers(1, 3))
            self.timeout = draw(st.sampled_from([None, 15.0]))
        batch = Batch(draw(st.integers(1, 4)), linger=draw(st.sampled_from([0.0, 0.5])))
        return [self.operator("only", draw, batch=batch)]


class Unpack(Operator):
    """Gives results to the next operator; what stands for a failed row is a row as well."""

    uid = "unpack"

    def process(self, record: tuple[Any, Any]) -> None:
        call, result = record
        self.output.collect([self.number(call.row), 0] if type(result) is Failed else result)

    @staticmethod
    def number(row: Any) -> int:
        number: int = row if isinstance(row, int) else row[0]
        return number


class ChainLives(Lives):
    """Two async operators in a chain, each with its own service."""

    def operators(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Operator]:
        if self.lives == 1:
            self.ordered, self.alike = draw(st.booleans()), draw(st.booleans())
            self.max_attempts = draw(st.integers(1, 3))
        first = self.operator("first", draw)
        capacity = self.capacity
        second = self.operator("second", draw)
        self.capacity = max(capacity, self.capacity)
        return [first, Unpack(), second]

    def seen(self, record: tuple[Any, Any]) -> int:
        call, result = record
        number = self.number_of(call.row)
        if type(result) is Failed:
            self.check_failure("second", number, result)
        elif result != self.books.answers.get(("second", number)):
            self.disagree("result", result, self.books.answers.get(("second", number)))
        return number


# -- with a ledger ---------------------------------------------------------------------------------


class PowerLoss(BaseException):
    """The power goes while something is synced."""


class Disk:
    """Keeps in mind what was synced: all that a loss of power leaves."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._names: dict[int, set[str]] = {}
        self.syncs_left: int | None = None
        """Syncs until the power goes."""

    def fsync(self, file: int) -> None:
        """Take the place of `os.fsync`."""
        if self.syncs_left == 0:
            raise PowerLoss
        if self.syncs_left is not None:
            self.syncs_left -= 1
        status = os.fstat(file)
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = set(os.listdir(file))
        else:
            self._sizes[status.st_ino] = status.st_size

    def cut(self, folder: Path, into: Path) -> None:
        """Copy what is left of `folder` after a loss of power, which is on the disk then."""
        into.mkdir(mode=0o700)
        names = self._names.get(folder.stat().st_ino, set())
        for path in folder.iterdir():
            if path.name not in names:
                continue
            if path.is_dir():
                self.cut(path, into / path.name)
            else:
                size = self._sizes.get(path.stat().st_ino, 0)
                copy = into / path.name
                copy.write_bytes(path.read_bytes()[:size])
                copy.chmod(0o600)
                self._sizes[copy.stat().st_ino] = size
        self._names[into.stat().st_ino] = set(os.listdir(into))


class SteppedWriter(LedgerWriter):
    """Commits when the machine says so, in its thread."""

    is_slow = False

    def _run(self) -> None:
        return

    def slow_down(self, is_slow: bool) -> None:
        """Have the disk be behind from the first result that waits, or never."""
        self.is_slow = is_slow
        self.queue._loss_window = -1.0 if is_slow else math.inf
        self.queue.committed()

    def step(self) -> None:
        """Make durable what has been appended."""
        if self.queue.waiting or self.queue.answers:
            self.hurry()
            self._step()

    def close(self, timeout: float | None = None) -> None:
        self.step()


class SteppedLedger(Ledger):
    """A ledger whose writers the machine drives. Nobody else makes its calls: it has no lease."""

    def writer(self, scope: Scope, reader: Any = None, **more: Any) -> SteppedWriter:
        with mock.patch("pillarbox.ledger.ledger.LedgerWriter", SteppedWriter):
            writer = super().writer(scope, reader, **more)
        assert isinstance(writer, SteppedWriter)
        return writer

    def lease(self, scope: Scope, name: str, **more: Any) -> None:
        return None


class SteppedSession(LedgerSession):
    """Closes its writer in the thread of the loop, whose time does not wait for another one."""

    async def close(self, is_whole: bool = False) -> None:
        self._records.writer.close()


def identify(row: int) -> tuple[bytes, bytes]:
    return row.to_bytes(16, "big"), b""


class LedgerLives(Lives):
    """One async operator with a ledger: a crash is a loss of power, and no row with a result is called again.

    What leaves must have been durable, so that the next life finds it, with the same result.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="pillarbox-lives-"))
        self.disk = Disk()
        self.left: dict[int, Any] = {}
        self.given: dict[int, list[Any]] = {}
        self.syncing = mock.patch("os.fsync", self.disk.fsync)
        self.syncing.start()
        (self.folder / "0").mkdir(mode=0o700)

    def place(self) -> Path:
        return self.folder / str(self.lives - 1)

    def operators(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Operator]:
        if self.lives == 1:
            self.ordered, self.alike = draw(st.booleans()), draw(st.booleans())
            self.max_attempts = draw(st.integers(1, 3))
        options = Options(ledger=SteppedLedger(str(self.place()), uid="uid"), errors="column")
        self.session = SteppedSession(options, "run", identify=identify, execution=EXECUTION)
        return [self.operator("only", draw, ledger_session=self.session)]

    @property
    def writer(self) -> SteppedWriter | None:
        records = getattr(self.session, "_records", None)
        writer = None if records is None else records.writer
        assert writer is None or isinstance(writer, SteppedWriter)
        return writer

    def answer(self, uid: str, number: int) -> Any:
        answer = super().answer(uid, number)
        self.given.setdefault(number, []).append(answer)
        return answer

    def called(self, uid: str, number: int) -> None:
        super().called(uid, number)
        # A replay calls what has failed again (`retry_errors`).
        if number in self.left and type(self.left[number]) is not Failed:
            self.disagree("call", f"row {number} is called", f"{self.left[number]} has left in some life")

    def seen(self, record: tuple[Any, Any]) -> int:
        call, result = record
        number = self.number_of(call.row)
        if type(result) is not Failed and result not in self.given.get(number, []):
            self.disagree("result", result, self.given.get(number))
        before = self.left.get(number)
        if before is None or type(before) is Failed:
            self.left[number] = result
        elif before != result:
            self.disagree("result", f"{result} of row {number}", f"{before}, which has left before")
        return number

    @precondition(lambda self: self._has_begun and self.writer is not None)
    @rule(turns=st.sampled_from([None, 0, 1, 2]))
    def commit(self, turns: int | None) -> None:
        """The ledger's writer comes to its turn."""
        assert self.writer is not None
        self.writer.step()
        self.run(turns)

    @precondition(lambda self: self._has_begun and self.writer is not None)
    @rule()
    def disk_is_slow(self) -> None:
        """Let waits for the disk be too long until the next commit."""
        assert self.writer is not None
        self.writer.slow_down(not self.writer.is_slow)

    @precondition(lambda self: self._has_begun and self.writer is not None and not self._running.done())
    @rule(data=st.data(), syncs=st.integers(0, 2))
    def power_goes_in_a_commit(self, data: st.DataObject, syncs: int) -> None:
        """The power goes while results are made durable."""
        assert self.writer is not None
        self.disk.syncs_left = syncs
        with suppress(PowerLoss):
            self.writer.step()
        self.disk.syncs_left = None
        self.crash(data, False, 0)

    def crashed(self) -> None:
        self.disk.cut(self.place(), self.folder / str(self.lives))
        self.let_go()

    def let_go(self) -> None:
        """Close the files of a life that is over, whose disk has been cut."""
        if self.writer is not None:
            self.writer._committer.close()
        self.session.reader.close()

    def help_finish(self) -> None:
        if self.writer is not None:
            self.writer.slow_down(False)
            self.writer.step()

    def teardown(self) -> None:
        try:
            super().teardown()
            if self._has_begun and not self._has_failed:
                with closing(Ledger(str(self.place())).reader(SCOPE)) as reader:
                    kept = list(reader.records())
                assert all(record.attempts > 0 for record in kept), "a call that was made counts as none"
        finally:
            # The draws of a life may end after its session was made.
            if hasattr(self, "session"):
                self.let_go()
            self.syncing.stop()
            shutil.rmtree(self.folder)


# To look for the shortest steps takes minutes: who needs them runs the machine with all phases.
PHASES = [Phase.reuse, Phase.generate]
QUICK = settings(max_examples=examples(100), stateful_step_count=30, deadline=None, phases=PHASES)
THOROUGH = settings(QUICK, max_examples=examples(200), stateful_step_count=60)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """No word about each of thousands of rows that fail."""
    logger = logging.getLogger("pillarbox")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


KINDS = {"rows": Lives, "batches": BatchLives, "chain": ChainLives, "ledger": LedgerLives}


@pytest.mark.parametrize("kind", KINDS)
def test_random_lives_of_the_shipped_operator_lose_double_and_repeat_nothing(
    kind: str,
) -> None:
    run_state_machine_as_test(KINDS[kind], settings=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_longer_random_lives_lose_double_and_repeat_nothing(kind: str) -> None:
    run_state_machine_as_test(KINDS[kind], settings=THOROUGH)


class GivenUp(BaseException):
    """Takes the place of what Hypothesis raises in a draw of an example that it gives up."""


class Simplest:
    """Takes the place of `st.data()`: draws the simplest value."""

    def draw(self, strategy: st.SearchStrategy[Any], label: object = None) -> Any:
        return find(strategy, lambda _: True, settings=settings(database=None, max_examples=1))


@pytest.mark.parametrize("kind", [Lives, LedgerLives])
@pytest.mark.parametrize("life", [1, 2])
def test_an_example_that_is_given_up_while_a_life_begins_leaves_no_loop_open(
    kind: type[Lives], life: int
) -> None:
    class GivenUpLives(kind):  # type: ignore[valid-type, misc]
        def operator(self, *args: Any, **more: Any) -> AsyncWaitOperator:
            if self.lives == life:
                raise GivenUp
            operator: AsyncWaitOperator = super().operator(*args, **more)
            return operator

    machine, data = GivenUpLives(), Simplest()
    with ExitStack() as lives:
        lives.callback(machine.teardown)
        lives.enter_context(suppress(GivenUp))
        machine.begin(data=data, is_stubborn=False, ending="answers")
        machine.crash(data=data, after_snapshot=False, turns=None)
    assert machine.lives == life
    assert machine.loop.is_closed()
