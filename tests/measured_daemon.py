"""Spark's daemon of Python workers for `make coverage`: saves what a worker went through after each task.

Spark ends its workers by signals, which leave no time for that.
"""

from __future__ import annotations

import socket

import coverage
from pyspark import daemon

_run_task = daemon.worker


def _run_and_save(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _run_task(sock, authenticated)
    finally:
        if (measured := coverage.Coverage.current()) is not None:
            measured.save()


if __name__ == "__main__":
    daemon.worker = _run_and_save
    daemon.manager()
