"""A worker notices that Spark has left, whatever its module is called."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
import sys
import threading
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructField, StructType

from pillarbox import Options
from pillarbox.sources.connectors.generator import GeneratorSource
from pillarbox.spark import worker as spark_worker
from pillarbox.spark import worker_garbage
from pillarbox.spark.data_source import PillarboxSource, Read, StreamReader
from pillarbox.spark.operator_plan import OperatorPlan
from pillarbox.spark.shipment import Shipment
from pillarbox.spark.task_connection import DisconnectWatcher, prompt_connection, unread_bytes
from pillarbox.spark.worker import run_job
from tests.versions import needs_pyspark

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")

needs_sources = needs_pyspark(4, 0, "sources")

WORKER = """
def main(infile, outfile):
    return DisconnectWatcher()
"""


@pytest.mark.parametrize("module", ["pyspark.worker", "__main__", "coverage_worker"])
def test_the_connection_is_found_whatever_the_module_of_the_worker_is_called(module: str) -> None:
    worker: dict[str, Any] = {"__name__": module, "DisconnectWatcher": DisconnectWatcher}
    exec(WORKER, worker)
    ours, sparks = socket.socketpair()
    with ours, ours.makefile("rb") as infile, ours.makefile("wb") as outfile:
        watcher = worker["main"](infile, outfile)
        watcher.check()
        sparks.close()
        with pytest.raises(ConnectionAbortedError, match="Spark has ended this task"):
            watcher.check()


def test_a_main_that_is_none_of_sparks_is_passed_over() -> None:
    worker: dict[str, Any] = {"__name__": "tool", "DisconnectWatcher": DisconnectWatcher}
    exec(WORKER, worker)
    with open("/dev/null", "rb") as infile, open("/dev/null", "wb") as outfile:
        worker["main"](infile, outfile).check()


@pytest.mark.contract
def test_a_task_is_told_that_spark_has_left_and_not_of_what_it_sends() -> None:
    worker: dict[str, Any] = {"__name__": "pyspark.worker", "DisconnectWatcher": DisconnectWatcher}
    exec(WORKER, worker)
    ours, sparks = socket.socketpair()
    # As in the processes that Spark's daemon forks.
    with ours, ours.makefile("rb") as infile, os.fdopen(os.dup(ours.fileno()), "wb") as outfile:
        watcher = worker["main"](infile, outfile)
        sparks.sendall(b"rows")
        outfile.write(b"results")
        watcher.flush()
        assert sparks.recv(100) == b"results"
        watcher.check()
        sparks.close()
        for told in (watcher.check, watcher.flush):
            with pytest.raises(ConnectionAbortedError):
                told()
        watcher.close()
        watcher.close()
        # The worker's last words, for nobody, are not an error.
        outfile.write(b"the end")
        outfile.flush()


def connected(family: str) -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection within this machine."""
    if family == "unix":
        return socket.socketpair()
    kind, host = {
        "v4": (socket.AF_INET, "127.0.0.1"),
        "v6": (socket.AF_INET6, "::1"),
        # As a JVM listens, that knows both.
        "both": (socket.AF_INET6, "::"),
    }[family]
    try:
        with socket.socket(kind) as listener:
            if family == "both":
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((host, 0))
            listener.listen()
            ours = socket.create_connection(
                ("127.0.0.1" if family == "both" else host, listener.getsockname()[1])
            )
            return ours, listener.accept()[0]
    except OSError:
        pytest.skip("this machine has no IPv6")


@pytest.mark.parametrize("family", ["unix", "v4", "v6", "both"])
def test_what_the_other_end_has_not_read_is_known(family: str) -> None:
    ours, theirs = connected(family)
    with ours, theirs:
        assert unread_bytes(ours.fileno()) == 0
        ours.sendall(b"x" * 1000)
        assert unread_bytes(ours.fileno()) >= 1000
        assert len(theirs.recv(600, socket.MSG_WAITALL)) == 600
        assert unread_bytes(ours.fileno()) >= 400
        assert len(theirs.recv(400, socket.MSG_WAITALL)) == 400
        assert unread_bytes(ours.fileno()) == 0


def test_where_nobody_knows_what_was_read_nothing_waits_for_it() -> None:
    read, write = os.pipe()
    try:
        os.write(write, b"x")
        assert unread_bytes(write) == 0
    finally:
        os.close(read)
        os.close(write)


CHUNK = 20
"""Bytes of a chunk on its way, few enough for all of them to fit into what the kernel holds."""
ROWS = 20_000
TASK = """
def main(infile, outfile):
    for chunk in chunks():
        outfile.write(b"x" * CHUNK)
    outfile.flush()
"""


@pytest.mark.contract(
    "A task's output grows by what Spark has read and not with time: a JVM that is slow to take the first "
    "rows costs no calls."
)
@pytest.mark.parametrize("family", ["unix", "v4"])
def test_the_output_of_a_task_grows_by_what_spark_has_read(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    calls = 0
    many, full = threading.Event(), threading.Event()

    async def call(row: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 800:
            full.set()
        if calls > 1000 and len(given) == 1:
            many.set()
        await asyncio.sleep(0)
        return row

    plan = OperatorPlan(call, "token", Options(capacity=100))
    given: list[int] = []
    failure: list[BaseException] = []

    def chunks() -> Any:
        with closing(run_job(plan, range(ROWS), convert=None)) as found:
            for chunk in found:
                given.append(len(chunk))
                yield chunk

    worker: dict[str, Any] = {"__name__": "pyspark.worker", "chunks": chunks, "CHUNK": CHUNK}
    exec(TASK, worker)
    ours, sparks = connected(family)

    def task() -> None:
        try:
            with ours, ours.makefile("rb") as infile, os.fdopen(os.dup(ours.fileno()), "wb") as outfile:
                worker["main"](infile, outfile)
        except BaseException as error:
            failure.append(error)

    def turn() -> None:
        """Have the loop make all calls that it may make, and the task hand out what it may."""
        loop = spark_worker.worker().loop_thread.loop
        for _ in range(200):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

    monkeypatch.setattr(spark_worker, "_worker", None)
    thread = threading.Thread(target=task)
    thread.start()
    try:
        assert full.wait()
        turn()
        assert len(given) == 1
        assert not many.is_set(), f"{calls} calls"
        # Each time that the reader comes back, one chunk leaves.
        for chunks_out in (2, 3, 4):
            assert len(sparks.recv(CHUNK, socket.MSG_WAITALL)) == CHUNK
            while unread_bytes(ours.fileno()) == 0:
                assert not failure
            turn()
            assert len(given) == chunks_out
        assert calls <= 800 + sum(given) + 200
        while sparks.recv(4096):
            pass
        thread.join()
        assert not failure
        assert sum(given) == calls == ROWS
    finally:
        sparks.close()
        thread.join()
        here = spark_worker._worker
        if here is not None:
            assert here.loop_thread.close(60)
            here.loop_thread.loop.close()


PROMPT = """
def main(infile, outfile):
    with prompt_connection():
        return options()
"""


@pytest.mark.contract(
    "Small writes over loopback wait for no acknowledgement within a task and up to the worker's next.",
    convicts=["tasks_end_delayed"],
)
@pytest.mark.parametrize("family", ["v4", "v6", "both"])
def test_small_writes_over_loopback_wait_for_no_acknowledgement_within_a_task_and_up_to_the_next(
    family: str,
) -> None:
    ours, theirs = connected(family)

    def options() -> tuple[int, int]:
        return (
            ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
            ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK),
        )

    def forget() -> tuple[int, int]:
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        return within.append(found()) or (0, 0)

    worker: dict[str, Any] = {"__name__": "pyspark.worker", "prompt_connection": prompt_connection}
    exec(PROMPT, worker)
    within: list[tuple[int, int]] = []
    found = options
    with ours, theirs, ours.makefile("rb") as infile, ours.makefile("wb") as outfile:
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert options() == (0, 0)
        worker["options"] = options
        assert worker["main"](infile, outfile) == (1, 1)
        # As the kernel does in a conversation; the end of the task sets them again.
        worker["options"] = forget
        assert worker["main"](infile, outfile) == (0, 0)
        assert within == [(0, 0)]
        assert options() == (1, 1)


@pytest.mark.contract(
    "What Spark sends a worker behind a function waits for no acknowledgement of that function.",
    convicts=["functions_arrive_delayed"],
)
@pytest.mark.parametrize("kind", ["function", pytest.param("source", marks=needs_sources)])
def test_what_comes_behind_a_function_waits_for_no_acknowledgement_of_it(kind: str) -> None:
    sent: Any = Shipment(iter, "fn") if kind == "function" else StreamReader(a_read())
    pickled = cloudpickle.dumps(sent)  # type: ignore[no-untyped-call]
    worker: dict[str, Any] = {"__name__": "pyspark.worker", "loads": partial(pickle.loads, pickled)}
    exec("def main(infile, outfile):\n    loads()\n", worker)
    ours, theirs = connected("v4")
    with ours, theirs, ours.makefile("rb") as infile, ours.makefile("wb") as outfile:
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        worker["main"](infile, outfile)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1


def a_read() -> Read:
    return Read.of(GeneratorSource(rows=3), {}, pa.schema([("id", pa.int64())]))


def test_a_connection_that_leaves_the_machine_or_is_no_tcp_keeps_its_options() -> None:
    worker: dict[str, Any] = {"__name__": "pyspark.worker", "prompt_connection": prompt_connection}
    exec(PROMPT, worker)
    worker["options"] = lambda: None
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as infile, ours.makefile("wb") as outfile:
        worker["main"](infile, outfile)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: asks which address of this machine others see.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback's")
        host = probe.getsockname()[0]
    with socket.socket() as listener:
        listener.bind((host, 0))
        listener.listen()
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs, ours.makefile("rb") as infile, ours.makefile("wb") as outfile:
        worker["main"](infile, outfile)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0


@pytest.mark.contract(
    "A worker's collector looks through what the first task has imported once, and not after each task."
)
def test_what_the_first_task_has_imported_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_garbage, "_tasks", 0)
    worker: dict[str, Any] = {"__name__": "pyspark.worker", "prompt_connection": prompt_connection}
    exec(PROMPT, worker)
    worker["options"] = gc.get_freeze_count
    ours, theirs = socket.socketpair()
    gc.unfreeze()
    try:
        with ours, theirs, ours.makefile("rb") as infile, ours.makefile("wb") as outfile:
            frozen = [worker["main"](infile, outfile) for _ in range(3)]
    finally:
        gc.unfreeze()
    assert frozen[0] == 0 and frozen[1] > 10_000 and frozen[2] == pytest.approx(frozen[1], rel=0.01)
    # Outside of a worker nothing is frozen.
    with prompt_connection(), prompt_connection():
        assert gc.get_freeze_count() == 0


@pytest.mark.contract(
    "A worker in which Spark plans a read looks through what was imported once, and not after each plan.",
    convicts=["plans_are_not_noted"],
)
@needs_sources
def test_what_a_worker_that_plans_has_imported_is_looked_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make() -> int:
        PillarboxSource({"source": "generator", "rows": "3"})
        return gc.get_freeze_count()

    def plan() -> int:
        made.reader(StructType([StructField("id", LongType())]))
        return gc.get_freeze_count()

    made = PillarboxSource({"source": "generator", "rows": "3"})
    worker: dict[str, Any] = {"__name__": "pyspark.worker"}
    exec("def main(infile, outfile):\n    return task()\n", worker)
    ours, theirs = socket.socketpair()
    gc.unfreeze()
    with ours, theirs, ours.makefile("rb") as infile, ours.makefile("wb") as outfile:
        for task in (make, plan):
            monkeypatch.setattr(worker_garbage, "_tasks", 0)
            worker["task"] = task
            try:
                frozen = [worker["main"](infile, outfile) for _ in range(2)]
            finally:
                gc.unfreeze()
            assert frozen[0] == 0 and frozen[1] > 10_000, task
