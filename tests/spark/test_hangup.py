"""A worker notices that Spark has left, whatever its module is called."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from typing import Any

import pytest

from pillarbox.spark.hangup import DisconnectWatcher
from pillarbox.wire.loop_thread import LoopThread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")

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
def test_the_loop_is_told_as_soon_as_spark_has_left_and_not_of_what_it_sends() -> None:
    worker: dict[str, Any] = {"__name__": "pyspark.worker", "DisconnectWatcher": DisconnectWatcher}
    exec(WORKER, worker)
    loop_thread = LoopThread("loop")
    told: list[BaseException] = []
    event = threading.Event()

    def left(error: BaseException) -> None:
        told.append(error)
        event.set()

    ours, sparks = socket.socketpair()
    try:
        # As in the processes that Spark's daemon forks.
        with ours, ours.makefile("rb") as infile, os.fdopen(os.dup(ours.fileno()), "wb") as outfile:
            watcher = worker["main"](infile, outfile)
            watcher.watch(loop_thread, left)
            sparks.sendall(b"rows")
            outfile.write(b"results")
            watcher.flush()
            assert sparks.recv(100) == b"results"
            # A turn of the loop after the rows have come.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop_thread.loop).result(60)
            assert not told
            sparks.close()
            assert event.wait(60)
            with pytest.raises(ConnectionAbortedError):
                watcher.flush()
            watcher.close()
            watcher.close()
            # The worker's last words, for nobody, are no error.
            outfile.write(b"the end")
            outfile.flush()
        assert [type(error) for error in told] == [ConnectionAbortedError]
    finally:
        assert loop_thread.close(60)
        loop_thread.loop.close()
