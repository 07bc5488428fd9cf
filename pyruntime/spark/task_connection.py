"""The connection of a Python worker to Spark: whether Spark still reads, what it has read, and how promptly.

For the task's thread.
"""

# Why a task watches its connection. One whose rows nobody needs any more, as a limit has enough of them, or
# that fails elsewhere, in an operator behind this one, is told nothing: Spark closes the connection to its
# Python worker. A worker that neither reads nor writes, as its input has ended and its calls take their
# time, does not see that, and would go on with all its calls. The alternatives are worse: a reader of the
# socket would take bytes that are PySpark's, `TaskContext` has no listeners in Python, and a write fails
# only once there is a result. So the connection is looked at with each chunk, and once a second without one.
#
# Nor does Spark tell what it has read: the kernel takes megabytes for a JVM that still loads its classes, or
# is held up behind this operator. But the kernel knows what nobody has read yet. Of a Unix socket it says
# so to the one who has written; of TCP to whoever asks for the other end, which is on the same machine, by
# netlink. `/proc/net/tcp` says it too, but its reading takes the longer the more sockets the machine has.
# What the look saves (`python -m bench.show`, two runs): `show(5)` over a partition of a million rows
# made 400 to 927 calls with it, whatever a call took; without it 4,600 to 36,991 where a call returns at
# once, most of them in the first job of a session, 2,800 to 4,600 where it takes 1 ms, 700 to 1,400 where
# it takes 20 ms.
#
# Why the connection is made prompt. Spark and a worker both write a little and then wait for the other. Over
# TCP each small write behind another waits for an acknowledgement (Nagle, RFC 896), which the kernel at the
# other end holds back for 40 ms (RFC 1122, 4.2.3.2): most of the 110 ms that a task of ten rows took.
# `TCP_NODELAY` is for what the worker writes, `TCP_QUICKACK` for what Spark writes, whose socket is not ours.
# Linux forgets the second once the two ends take turns, so it is set again at the end of a task: the rest of
# this task and the beginning of the worker's next one are acknowledged at once too.

from __future__ import annotations

import array
import errno
import ipaddress
import logging
import os
import select
import socket
import stat
import struct
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from pillarbox.spark.worker_garbage import note_task
from pillarbox.user_frames import is_of_spark

T = TypeVar("T")

log = logging.getLogger("pillarbox")

MIN_UNREAD_POLL_S = 0.0001
MAX_UNREAD_POLL_S = 0.05
"""Seconds from one look for unread bytes to the next; each time is twice the one before."""


class DisconnectWatcher:
    """Notices that Spark has closed the worker's connection. For the task's thread.

    Where the connection cannot be found or looked at, nothing is ever noticed.
    """

    def __init__(self) -> None:
        self._poll: select.poll | None = None
        self._output = _connection()
        # Linux alone has it. It also comes for an end closed for writing only, which Spark does not do.
        event = getattr(select, "POLLRDHUP", 0)
        if event and self._output is not None:
            self._poll = select.poll()
            self._poll.register(self._output.fileno(), event)
        else:
            log.debug("no connection to Spark to look at: calls that hang are not ended when Spark leaves")

    def check(self) -> None:
        """Raise ConnectionAbortedError if the other end has closed the connection."""
        if self._poll is not None and self._poll.poll(0):
            raise _left()

    def flush(self) -> None:
        """Have what was written reach Spark now. Raises ConnectionAbortedError if Spark has left."""
        self.check()
        if self._output is not None:
            try:
                self._output.flush()
            except OSError as error:
                raise _left() from error

    def await_reader(self) -> None:
        """Wait until Spark has read all that was flushed. Raises ConnectionAbortedError if Spark has left.

        Returns at once where the kernel does not say what was read.
        """
        if self._output is None or self._poll is None:
            return
        pause = MIN_UNREAD_POLL_S
        while unread_bytes(self._output.fileno()):
            # No event tells it. Spark reads within microseconds, unless it has other things to do.
            time.sleep(pause)
            pause = min(2 * pause, MAX_UNREAD_POLL_S)
            self.check()

    def close(self) -> None:
        """Watch no longer, and where Spark has left, have what is still written go nowhere. Idempotent."""
        if self._poll is not None and self._poll.poll(0):
            # The worker ends now, and would print a traceback as it cannot write its last words.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, self._output.fileno())
            os.close(nowhere)
            self._poll = None


SOCK_DIAG_BY_FAMILY = 20
NETLINK_SOCK_DIAG = 4
NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_NO_COOKIE = struct.pack("=Iq", 0, -1)
"""Any interface, and a socket of whatever age."""
_RQUEUE_AT = _HEADER.size + 4 + 48 + 4
"""The place in `inet_diag_msg` of the bytes that were received and not read."""


def unread_bytes(fd: int) -> int:
    """Bytes that were written to a connected socket and not read at its other end, about; 0 if not known.

    Any thread. The other end has to be on this machine. Linux; see `sock_diag(7)` and `unix(7)`.
    """
    # Not every system has these.
    import fcntl
    import termios

    try:
        with socket.socket(fileno=os.dup(fd)) as ours:
            if ours.family == socket.AF_UNIX:
                unread = array.array("i", [0])
                fcntl.ioctl(fd, termios.TIOCOUTQ, unread)
                return unread[0]
            return _received(ours)
    except (OSError, ValueError, struct.error):
        log.debug("what Spark has not read yet is not known", exc_info=True)
        return 0


def _received(ours: socket.socket) -> int:
    """Bytes that wait at the other end of a TCP connection within this machine, unread."""
    # Ours and theirs swapped: the socket that is asked for is the other end.
    (their_host, their_port), (host, port) = ours.getpeername()[:2], ours.getsockname()[:2]
    ends = b"".join(
        socket.inet_pton(ours.family, each.partition("%")[0]).ljust(16, b"\0") for each in (their_host, host)
    )
    request = _REQUEST.pack(ours.family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    request += _PORTS.pack(their_port, port) + ends + _NO_COOKIE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as netlink:
        size = _HEADER.size + len(request)
        netlink.send(_HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0) + request)
        answer = netlink.recv(4096)
    if _HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        raise OSError(errno.ENOENT, "the kernel does not know the other end of the connection")
    return int(struct.unpack_from("=I", answer, _RQUEUE_AT)[0])


def _left() -> ConnectionAbortedError:
    return ConnectionAbortedError("Spark has ended this task")


@contextmanager
def prompt_connection() -> Iterator[None]:
    """Have small writes between Spark and this worker arrive at once, from here to the worker's next task.

    Around all that a task does. Changes nothing outside of a worker, over a Unix socket, which does not
    delay, and beyond loopback, where an acknowledgement more costs other machines something.
    """
    begin_task()
    try:
        yield
    finally:
        make_prompt()


def through_prompt_connection(
    results: Generator[T, None, None], within: AbstractContextManager[None]
) -> Iterator[T]:
    """Yield what a task gives, within `prompt_connection` and, outside of that, `within`; closes it."""
    # One step for each batch.
    with within, prompt_connection(), closing(results):
        yield from results


def begin_task() -> None:
    """Note that a task begins, and make its connection prompt; see `make_prompt`."""
    if _connection() is not None:
        note_task()
        make_prompt()


def make_prompt() -> None:
    """Set the options of this worker's connection to Spark now; see `prompt_connection`."""
    output = _connection()
    if output is None:
        return
    with suppress(OSError, ValueError), socket.socket(fileno=os.dup(output.fileno())) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        if not _is_loopback(str(connection.getpeername()[0])):
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Linux alone has it.
        if hasattr(socket, "TCP_QUICKACK"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def is_in_worker() -> bool:
    """Return True if this thread works for Spark in a process of its own: that of a task, or of a source."""
    frame = _worker_frame()
    return frame is not None and (is_of_spark(frame.f_code.co_filename) or _socket_of(frame) is not None)


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    # A JVM that listens for both families shows an address of IPv4 as one of IPv6.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _connection() -> Any:
    """The file that PySpark's worker writes results to, of a socket; None outside of a worker."""
    frame = _worker_frame()
    return None if frame is None else _socket_of(frame)


def _socket_of(frame: FrameType) -> Any:
    output = frame.f_locals["outfile"]
    try:
        # That of the process of a stream's source reads and writes, and has no number.
        return output if stat.S_ISSOCK(os.fstat(output.fileno()).st_mode) else None
    except (AttributeError, OSError, ValueError):
        return None


def _worker_frame() -> FrameType | None:
    """The frame below this one in which PySpark reads what Spark wants done; None where there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # By what it holds: the module has another name without a daemon, and where a setting names its own.
        # What is local gives its names as a list on CPython 3.13, and as a set before.
        if frame.f_code.co_name == "main" and {"infile", "outfile"} <= set(frame.f_locals):
            return frame
        frame = frame.f_back
    return None
