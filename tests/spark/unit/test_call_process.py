"""The process that holds the calls of streams: it outlives workers and ends with its executor."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pillarbox import CallFailed, Options
from pillarbox.ledger import Ledger
from pillarbox.spark.ledger_plan import LedgerPlan
from pillarbox.spark.operator_plan import OperatorPlan
from pillarbox.spark.stream import call_client, call_process
from pillarbox.spark.stream.bucket_state import BucketState, StreamPlan
from pillarbox.spark.stream.call_client import CallClient, began_at, private_folder
from pillarbox.spark.stream.call_process import CallProcess, remove_stale
from pillarbox.spark.stream.held_calls import LateExecutionError
from tests.spark.unit.digests import digests_of_numbers
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the /proc of Linux")

LONG_S = 3600.0
"""Seconds beyond the time-out of every test, which alone ends a wait for what never comes."""
GATE = "PILLARBOX_TEST_GATE"
"""The environment's name of a file."""
SCHEMA = T.StructType().add("pid", T.LongType()).add("calls", T.LongType())
_calls: Counter[int] = Counter()


async def told(row: Any) -> tuple[int, int]:
    """The process that calls and how often it has called this row.

    A row of 0 never ends, one of -1 fails, one of -2 as soon as there is the file `GATE`.
    """
    _calls[row.n] += 1
    while row.n < -1 and not os.path.exists(os.environ[GATE]):
        await asyncio.sleep(0.01)
    if not row.n:
        await asyncio.Event().wait()
    if row.n < 0:
        raise ValueError("no such row")
    return os.getpid(), _calls[row.n]


_running = 0


async def crowd(row: Any) -> tuple[int, int]:
    """The process that calls and how many calls of this function it has now. A row of 0 never ends.

    A call that is cancelled takes its time.
    """
    global _running
    _running += 1
    try:
        if not row.n:
            await asyncio.Event().wait()
        return os.getpid(), _running
    except asyncio.CancelledError:
        await asyncio.sleep(0.3)
        raise
    finally:
        _running -= 1


def plan(name: str = "stream", max_wait: float = LONG_S, fn: Any = told) -> StreamPlan:
    operator = OperatorPlan(fn, f"token of {name}", Options(ordered=False))
    # A process of the test before may be there yet.
    name = uuid.uuid5(uuid.NAMESPACE_OID, f"{name}-{call_client.executor_pid()}").hex
    return StreamPlan(
        name, operator, SCHEMA, (), (("n", pa.int64()),), SCHEMA.simpleString(), False, max_wait
    )


def rows_of(*numbers: int, time_ms: int = 1, batch: int = -1) -> pa.RecordBatch:
    values = np.array(numbers, np.int64)
    rows = BucketState().with_rows(
        pa.RecordBatch.from_arrays([pa.array(values)], ["n"]),
        time_ms,
        values,
        digests_of_numbers(values),
        batch=batch,
    )
    assert rows is not None
    return rows


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for an executor's Java process."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(call_client, "executor_pid", lambda: process.pid)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def connect(executor: subprocess.Popen[bytes]) -> Iterator[Callable[..., CallClient]]:
    clients = []

    def connect(given: StreamPlan | None = None, query: Any = "query", run: Any = "run") -> CallClient:
        clients.append(CallClient(plan() if given is None else given, query, run))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def told_of(client: CallClient, rows: pa.RecordBatch, waiting: int = 0, time_ms: int = 1) -> dict[int, Any]:
    known = client.advance(0, time_ms, rows, waiting, ticked=False)
    if known.outputs is None:
        return {}
    found = zip(known.places.tolist(), known.outputs.to_pylist(), strict=True)
    return {place: (row["pid"], row["calls"]) for place, row in found}


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie, where nobody reaps it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_tasks_of_an_executor_find_the_calls_of_those_before_them(connect: Any) -> None:
    rows = rows_of(1, 2)
    first = told_of(connect(), rows)
    assert {calls for _, calls in first.values()} == {1}
    (process,) = {pid for pid, _ in first.values()}
    assert process != os.getpid()
    # Another execution of the micro-batch, and the next micro-batch.
    assert told_of(connect(), rows) == first
    assert told_of(connect(), rows, waiting=2, time_ms=2) == first


@pytest.mark.contract("A call whose process is killed is made again at once.")
def test_calls_of_a_process_that_was_killed_are_made_again_by_the_next_one(connect: Any) -> None:
    rows = rows_of(1, 2)
    (process,) = {pid for pid, _ in told_of(connect(), rows).values()}
    os.kill(process, signal.SIGKILL)
    again = told_of(connect(), rows, waiting=2)
    assert {calls for _, calls in again.values()} == {1}
    (other,) = {pid for pid, _ in again.values()}
    assert other != process
    # Also where a task is connected already.
    client = connect()
    os.kill(other, signal.SIGKILL)
    assert other not in {pid for pid, _ in told_of(client, rows, waiting=2).values()}


@pytest.mark.contract(convicts=["dead_holder_stays_named"])
def test_executors_of_a_host_have_the_calls_of_a_micro_batch_made_once_and_again_if_they_are_lost(
    connect: Any, executor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, rows = plan(), rows_of(1, 2)
    first = told_of(connect(given), rows)
    (process,) = {pid for pid, _ in first.values()}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        monkeypatch.setattr(call_client, "executor_pid", lambda: other.pid)
        # No state is committed yet that could say where they are.
        assert told_of(connect(given), rows) == first
        executor.kill()
        executor.wait()
        wait_until(lambda: has_ended(process))
        again = told_of(connect(given), rows)
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as third:
            monkeypatch.setattr(call_client, "executor_pid", lambda: third.pid)
            assert told_of(connect(given), rows) == again
            third.communicate(b"\n")
        other.communicate(b"\n")
    assert {calls for _, calls in again.values()} == {1}
    assert process not in {pid for pid, _ in again.values()}


@pytest.mark.contract(convicts=["holders_chosen_together"])
def test_executors_of_a_host_that_come_to_a_bucket_at_the_same_time_have_its_calls_made_once(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, rows = plan(), rows_of(1, 2)
    found: list[dict[int, Any]] = []
    together = threading.Barrier(2)
    with ExitStack() as stack:
        executors = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            for _ in range(2)
        ]
        pids = {f"executor {at}": each.pid for at, each in enumerate(executors)}
        monkeypatch.setattr(call_client, "executor_pid", lambda: pids[threading.current_thread().name])

        def ask() -> None:
            client = connect(given)
            together.wait()
            found.append(told_of(client, rows))

        threads = [threading.Thread(target=ask, name=name) for name in pids]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for process in executors:
            process.communicate(b"\n")
    first, second = found
    assert first == second
    assert {calls for _, calls in first.values()} == {1}


@pytest.mark.contract
@pytest.mark.parametrize("known", [(None, -1), ("query", 7)], ids=["thread first", "thread last"])
def test_what_a_task_has_called_that_knows_no_query_is_in_the_ledger_for_one_that_does(
    connect: Any, tmp_path: Path, known: tuple[str | None, int]
) -> None:
    ledger_plan = LedgerPlan(SCHEMA, None, ("n",), None, None, None, None, "plan", None)
    ledger = Ledger(str(tmp_path / "ledger"), loss_window=0.01)
    operator = OperatorPlan(
        told,
        "token",
        Options(ordered=False, ledger=dataclasses.replace(ledger, uid="told")),
        ledger_plan=ledger_plan,
    )
    given = replace(plan(), operator=operator)

    def told_to(query: str | None, batch: int) -> dict[int, Any]:
        return told_of(connect(given, query, query), rows_of(1, 2, batch=batch))

    first = told_to(*known)
    (process,) = {pid for pid, _ in first.values()}
    os.kill(process, signal.SIGKILL)
    # With the number of the process that has called.
    assert told_to("query" if known[0] is None else None, 7 if known[1] < 0 else -1) == first


@pytest.mark.contract(convicts=["missing_rows_not_asked_for"])
def test_rows_that_the_state_has_and_the_process_has_not_are_called_before_those_that_come(
    connect: Any,
) -> None:
    old, new = rows_of(1, 2), rows_of(3, time_ms=2)
    rows = pa.Table.from_batches([old, new]).combine_chunks().to_batches()[0]
    assert sorted(told_of(connect(), rows, waiting=2, time_ms=2)) == [0, 1, 2]


def test_results_are_released_by_a_micro_batch_in_which_their_bucket_waits_for_nothing(connect: Any) -> None:
    rows = rows_of(1)
    told_of(connect(), rows)
    known = connect().advance(0, 2, None, 0, ticked=True)
    assert known.places.tolist() == []
    # A state that waits for it after all has its call made again.
    assert {calls for _, calls in told_of(connect(), rows, waiting=1, time_ms=3).values()} == {2}


def test_the_process_ends_with_its_executor_and_leaves_no_socket(
    connect: Any, executor: subprocess.Popen[bytes]
) -> None:
    (process,) = {pid for pid, _ in told_of(connect(), rows_of(1)).values()}
    path = call_client.socket_path(call_client.process_name(executor.pid))
    assert os.path.exists(path)
    assert not os.stat(os.path.dirname(path)).st_mode & 0o077
    executor.kill()
    executor.wait()
    wait_until(lambda: has_ended(process) and not os.path.exists(path))


@pytest.mark.contract(convicts=["one_bucket_takes_all_the_time"])
def test_slow_calls_hold_a_micro_batch_up_for_max_wait_in_all_its_executions(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Executions do not wait for the call that never ends, and one of them finds the other.
    client, rows = connect(plan(max_wait=1.6)), rows_of(0, 1)
    wait_until(lambda: sorted(told_of(client, rows)) == [1])
    # How long they wait: of several buckets each a sixteenth more, and by when, in all executions.
    now = 100.0
    monkeypatch.setattr(call_process, "time", SimpleNamespace(monotonic=lambda: now))
    stream = call_process._Stream(plan(max_wait=16.0), "query", "run")
    try:
        assert [stream.deadline_of(1, bucket) for bucket in (7, 3, 7)] == [101.0, 102.0, 101.0]
        now = 103.0
        assert [stream.deadline_of(1, bucket) for bucket in (7, 3)] == [101.0, 102.0]
        assert max(stream.deadline_of(1, bucket) for bucket in range(16)) == 116.0
        assert stream.deadline_of(2, 3) == 104.0
    finally:
        stream.calls.close()
        stream.release()


def test_a_query_that_is_started_again_ends_the_calls_of_its_run_before(connect: Any) -> None:
    rows = rows_of(1)
    told_of(connect(plan("a"), run="run 1"), rows)
    again = told_of(connect(plan("b"), run="run 2"), rows, waiting=1)
    assert {calls for _, calls in again.values()} == {2}
    # A task of the run before, which comes late, is refused.
    with pytest.raises(LateExecutionError, match="started again"):
        told_of(connect(plan("a"), run="run 1"), rows)
    # Another query is another matter.
    assert told_of(connect(plan("c"), query="another"), rows)


@pytest.mark.contract(convicts=["begun_before_end"])
def test_a_query_that_is_started_again_makes_no_call_before_those_of_its_run_before_have_ended(
    connect: Any,
) -> None:
    rows = rows_of(0, 0, 0, 1)
    for number in range(3):
        client = connect(plan(f"stream {number}", 1.0, crowd), run=f"run {number}")
        found: dict[int, Any] = {}

        def ask(client: CallClient = client, found: dict[int, Any] = found) -> bool:
            found.update(told_of(client, rows, waiting=len(rows)))
            return bool(found)

        wait_until(ask)
        assert [at_once for _, at_once in found.values()] == [len(rows)]


@pytest.mark.contract(convicts=["ended_run_goes_on", "times_of_before_kept"])
def test_a_query_that_is_started_again_over_the_same_dataframe_goes_on_with_its_calls(connect: Any) -> None:
    rows = rows_of(1, 2)
    first = told_of(connect(run="run 1"), rows)
    assert told_of(connect(run="run 2"), rows, waiting=2, time_ms=2) == first
    # Also where the clock was set back before.
    assert told_of(connect(run="run 3"), rows, waiting=2, time_ms=1) == first
    with pytest.raises(LateExecutionError, match="started again"):
        told_of(connect(run="run 1"), rows)


def left_by(folder: Path, name: str) -> set[str]:
    """Files such as those that a killed process of this name leaves."""
    names = {name, name + call_client.STARTING, name + call_client.HELD}
    for each in names:
        (folder / each).touch()
    return names


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_killed_processes_have_left_is_removed(tmp_path: Path) -> None:
    left_by(tmp_path, "calls-1-0-1")
    # Its executor lives, and another one may get that one's number.
    left_by(tmp_path, call_client.process_name(os.getpid()))
    for name in (
        "calls-2-0",
        "calls-3-0.lock",
        "clock-new",
        "clock-old",
        "holders-new",
        "holders-old",
        "any",
    ):
        (tmp_path / name).touch()
    for name in ("clock-old", "holders-old"):
        os.utime(tmp_path / name, (0, 0))
    remove_stale(str(tmp_path))
    assert names_in(tmp_path) == {"clock-new", "holders-new", "any"}


@pytest.mark.contract("Streams of containers that share the folder for temporary files keep their processes.")
def test_a_process_that_lives_keeps_its_socket_whatever_its_number_says_here(
    executor: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    # As of another container, whose numbers name no process here, or another one.
    foreign = [f"calls-{2**22 + 1}-1-1", f"calls-{os.getpid()}-1-1"]
    command = [sys.executable, "-m", "pillarbox.spark.stream.call_process"]
    with ExitStack() as stack:
        processes = []
        for name in foreign:
            process = subprocess.Popen(
                [*command, str(tmp_path / name), str(executor.pid)], stdout=subprocess.PIPE
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            processes.append(process)
        alive = names_in(tmp_path)
        left_by(tmp_path, "calls-1-0-1")
        remove_stale(str(tmp_path))
        assert names_in(tmp_path) == alive | set(foreign)
        for name in foreign:
            with Client(str(tmp_path / name), "AF_UNIX"):
                pass
        # Once it is killed, whatever lives here under its number.
        for process in processes:
            process.kill()
            process.wait()
        remove_stale(str(tmp_path))
        assert not names_in(tmp_path)


def test_a_process_that_is_being_started_keeps_its_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "calls-1-0-1")
    with call_client.locked(path + call_client.STARTING, wait=True) as lock:
        remove_stale(str(tmp_path))
        assert os.path.samestat(os.fstat(lock.fileno()), os.stat(path + call_client.STARTING))
        # It has locked its own file, and does not listen yet.
        with call_client.locked(path + call_client.HELD, wait=True):
            remove_stale(str(tmp_path))
    with call_client.locked(path + call_client.HELD, wait=True):
        remove_stale(str(tmp_path))
        assert os.path.exists(path + call_client.HELD)


def test_a_process_of_a_version_that_holds_no_lock_keeps_its_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "calls-1-0")
    with Listener(path, "AF_UNIX"):
        remove_stale(str(tmp_path))
        assert os.path.exists(path)


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = call_client.locked(str(path), wait=True)
    waiting = threading.Event()
    got: list[Any] = []

    def wait_for_it() -> None:
        waiting.set()
        got.append(call_client.locked(str(path), wait=True))

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    waiting.wait()
    assert call_client.locked(str(path), wait=False) is None
    path.unlink()
    first.close()
    thread.join()
    with got[0] as lock:
        assert os.path.samestat(os.fstat(lock.fileno()), path.stat())


def test_a_task_that_knows_no_query_has_the_stream_of_its_name(connect: Any) -> None:
    rows = rows_of(1)
    first = told_of(connect(query=None, run=None), rows)
    assert told_of(connect(), rows) == first
    assert told_of(connect(query=None, run=None), rows) == first
    assert told_of(connect(run=None), rows) == first
    # Two queries over one DataFrame have streams apart, and such a task could belong to either.
    assert told_of(connect(query="another"), rows) != first
    with pytest.raises(RuntimeError, match="two queries run this DataFrame"):
        told_of(connect(query=None, run=None), rows)


@pytest.mark.contract
def test_a_bucket_that_moves_to_another_executor_of_the_host_keeps_its_calls(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, stream = rows_of(1, 2), plan()
    first = told_of(connect(stream), rows)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        monkeypatch.setattr(call_client, "executor_pid", lambda: other.pid)
        assert told_of(connect(stream), rows, waiting=2, time_ms=2) == first
        other.kill()


@pytest.mark.contract(convicts=["held_calls_end_idle", "ended_in_task"])
def test_a_stream_that_nobody_asks_for_is_ended_later_where_it_holds_rows(
    connect: Any, executor: subprocess.Popen[bytes]
) -> None:
    process = CallProcess(call_client.socket_path(call_client.process_name(executor.pid)), idle=0.0)
    threading.Thread(target=process.serve, daemon=True).start()
    client, rows = connect(), rows_of(1)
    try:
        first = told_of(client, rows)
        client.close()
        wait_until(lambda: not process._streams[0].tasks)
        process.end_idle()
        again = connect()
        assert told_of(again, rows, waiting=1, time_ms=2) == first
        # A micro-batch whose committed state waits for nothing, and its task goes on.
        again.advance(0, 3, rows.slice(0, 0), 0, ticked=True)
        process.end_idle()
        again.advance(0, 3, rows.slice(0, 0), 0, ticked=True)
        again.close()
        wait_until(lambda: process.end_idle() or not process._streams)
        assert {calls for _, calls in told_of(connect(), rows, time_ms=4).values()} == {2}
    finally:
        process.close()


def test_a_task_that_could_not_be_served_for_lack_of_files_hangs_no_other(
    connect: Any, executor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = CallProcess(call_client.socket_path(call_client.process_name(executor.pid)))
    accept = process._listener.accept
    failures = [OSError(errno.EMFILE, "Too many open files")]

    def accept_later() -> Any:
        if failures:
            raise failures.pop()
        return accept()

    monkeypatch.setattr(process._listener, "accept", accept_later)
    threading.Thread(target=process.serve, daemon=True).start()
    try:
        assert sorted(told_of(connect(), rows_of(1))) == [0]
        assert not failures
    finally:
        process.close()


def test_a_file_of_processes_that_are_gone_is_kept_for_the_bucket_that_has_a_new_one(
    connect: Any, executor: subprocess.Popen[bytes]
) -> None:
    given = plan("old file")
    path = Path(call_client.holders_path(given.name))
    path.write_text("0 calls-1-0\n")
    os.utime(path, (0, 0))
    assert sorted(told_of(connect(given), rows_of(1))) == [0]
    assert path.read_text().split()[-2:] == ["0", call_client.process_name(executor.pid)]


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_folder_that_others_may_enter_is_not_used_for_sockets(tmp_path: Path, mode: int) -> None:
    folder = private_folder(str(tmp_path))
    assert folder is not None
    assert os.stat(folder).st_mode & 0o777 == 0o700
    os.chmod(folder, mode)
    assert private_folder(str(tmp_path)) is None


def test_errors_reach_the_task_that_asks(connect: Any) -> None:
    client = connect()
    with pytest.raises(CallFailed, match="no such row"):
        told_of(client, rows_of(-1))
    # The task is tried again, and begins the stream anew.
    assert sorted(told_of(connect(), rows_of(1))) == [0]
    told_of(connect(), rows_of(1, time_ms=5), time_ms=5)
    with pytest.raises(LateExecutionError, match="was opened after"):
        told_of(connect(), rows_of(1))


@pytest.mark.contract(
    "A call that fails between two micro-batches fails the next one.", convicts=["failed_for_ever"]
)
def test_calls_that_fail_between_two_micro_batches_fail_the_next_one_in_each_of_its_attempts(
    connect: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(GATE, str(tmp_path / "gate"))
    given, rows = plan(max_wait=0.0), rows_of(-2)
    assert told_of(connect(given), rows) == {}
    (tmp_path / "gate").touch()
    for time_ms in itertools.count(2):
        try:
            told_of(connect(given), rows, 1, time_ms)
        except CallFailed:
            break
    for _ in range(3):
        with pytest.raises(CallFailed, match="no such row"):
            told_of(connect(given), rows, 1, time_ms + 1)
    # Whoever starts the query again wants them made again.
    wait_until(lambda: sorted(told_of(connect(given, run="run 2"), rows_of(1), 0, time_ms + 1)) == [0])


def test_a_process_is_told_from_another_of_the_same_number() -> None:
    assert began_at(os.getpid()) == began_at(os.getpid())
    assert began_at(2**22 + 1) is None
