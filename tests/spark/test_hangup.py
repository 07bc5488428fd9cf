"""A worker notices that Spark has left, whatever its module is called."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from pillarbox.spark.hangup import Hangup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")

WORKER = """
def main(infile, outfile):
    return Hangup()
"""


@pytest.mark.parametrize("module", ["pyspark.worker", "__main__", "coverage_worker"])
def test_the_connection_is_found_whatever_the_module_of_the_worker_is_called(module: str) -> None:
    worker: dict[str, Any] = {"__name__": module, "Hangup": Hangup}
    exec(WORKER, worker)
    ours, sparks = socket.socketpair()
    with ours, ours.makefile("rb") as infile, ours.makefile("wb") as outfile:
        hangup = worker["main"](infile, outfile)
        hangup.check()
        sparks.close()
        with pytest.raises(ConnectionAbortedError, match="Spark has ended this task"):
            hangup.check()


def test_a_main_that_is_none_of_sparks_is_passed_over() -> None:
    worker: dict[str, Any] = {"__name__": "tool", "Hangup": Hangup}
    exec(WORKER, worker)
    with open("/dev/null", "rb") as infile, open("/dev/null", "wb") as outfile:
        worker["main"](infile, outfile).check()
