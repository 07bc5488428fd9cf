"""Results of calls, and who executed a micro-batch: shared by the worker processes of one machine.

Spark gives a partition of the next micro-batch to whichever idle worker comes first, so that a call which
takes several micro-batches would be made anew by each. So each process answers on a Unix socket for the
calls that it makes, in a folder that only its user may enter; nothing listens on a network. Who asks is told
when a call has ended. A process that is gone is seen at once, by the end of the connection, and its calls
are made again.

Everything here is for the thread of the event loop, but `serve`, `fetch` and `claim_execution`, which any
thread may call.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import pickle
import socket
import stat
import struct
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from pillarbox.spark.stream import calls

if TYPE_CHECKING:
    from pillarbox.spark.stream.calls import Engine
    from pillarbox.spark.stream.entry import Entry
    from pillarbox.wire.loop_thread import LoopThread

log = logging.getLogger("pillarbox")

STALE = 60.0
"""Seconds after which it is looked whether the process of a socket is gone."""

LONGEST = 40
"""Characters of a temporary folder, at most: the path of a socket may have 104, or 108."""

MOST = 1 << 30
"""Bytes of one message, at most."""

CLAIM_LIFETIME_S = 86_400.0
"""Seconds after which the note of who executed a partition is removed."""

_lock = threading.Lock()
_running: set[Any] = set()
"""Tasks that run: the loop itself holds them weakly."""
_served: dict[bytes, asyncio.AbstractServer | None] = {}


def folder(base: str | None = None) -> str | None:
    """The folder of this user's sockets; None where there can be none, or others may enter it. Any thread."""
    if not hasattr(os, "getuid"):
        return None
    if base is None:
        base = tempfile.gettempdir()
        if len(base) > LONGEST:
            base = "/tmp"
    path = os.path.join(base, f"pillarbox-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        log.warning("%s is not a folder of this user alone: calls are not shared between workers", path)
        return None
    return path


def serve(loop_thread: LoopThread) -> None:
    """Answer for the calls of this process, from now on. Any thread; once is enough."""
    process = calls.process()
    with _lock:
        if process in _served:
            return
        _served.clear()
        _served[process] = None
    loop_thread.submit(_serve(process))


def fetch(engine: Engine, owner: bytes, entries: list[Entry]) -> None:
    """Get the results of `entries` from the process that makes their calls. Any thread.

    What it does not know, or has not given when it ends, is called by `engine`.
    """
    engine.loop_thread.submit(_fetch(engine, owner, entries))


def claim_execution(partition: str, batch: str, stage: int, engine: str) -> str:
    """The engine that first executed a partition of a micro-batch on this machine: `engine`, or another.

    partition: tells it from those of all streams. batch: the micro-batch and the run of its query. stage: a
    retry of a failed task has that of the attempt before it, and takes its place. Where no folder is for this
    user alone, or nothing can be written there, each execution is the first. Any thread.
    """
    place = folder()
    if place is None:
        return engine
    # POSIX only, as the folder is.
    import fcntl

    path = os.path.join(place, hashlib.sha256(partition.encode()).hexdigest()[:32] + ".run")
    try:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+") as file:
            # Two actions in two threads may come at the same moment.
            fcntl.flock(file, fcntl.LOCK_EX)
            noted = file.read().splitlines()
            if len(noted) == 3 and noted[0] == batch and noted[1] != str(stage):
                return noted[2]
            file.seek(0)
            file.write(f"{batch}\n{stage}\n{engine}\n")
            file.truncate()
    except OSError as error:
        log.warning("it is not noted who executed a micro-batch: %s: %s", type(error).__name__, error)
    return engine


async def _serve(process: bytes) -> None:
    place = folder()
    if place is None:
        return
    try:
        _remove_stale(place)
        _served[process] = await asyncio.start_unix_server(
            _answer, os.path.join(place, f"{process.hex()}.sock")
        )
    except (OSError, NotImplementedError) as error:
        log.warning("calls are not shared between workers: %s: %s", type(error).__name__, error)


def _remove_stale(place: str) -> None:
    """Remove sockets that nobody answers at, as their processes were killed, and notes of long ago."""
    for each in os.scandir(place):
        with contextlib.suppress(OSError):
            age = time.time() - each.stat(follow_symlinks=False).st_mtime
            if each.name.endswith(".run"):
                if age > CLAIM_LIFETIME_S:
                    os.unlink(each.path)
                continue
            if age < STALE:
                continue
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(0.1)
                try:
                    probe.connect(each.path)
                except ConnectionRefusedError:
                    os.unlink(each.path)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    _running.add(this := asyncio.current_task())
    finished: asyncio.Queue[Entry | None] = asyncio.Queue()
    asked: dict[int, int] = {}
    watched: list[Entry] = []
    try:
        name, numbers = await _receive(reader)
        engine = calls.engine(name)
        gone: list[int] = []
        for number in numbers:
            entry = None if engine is None else engine.find(number)
            if entry is None:
                gone.append(number)
                continue
            asked[id(entry)] = number
            if entry.done:
                finished.put_nowait(entry)
            else:
                entry.watchers.append(finished.put_nowait)
            watched.append(entry)
        await _send(writer, (gone, None))
        # Nothing more comes from there but the end.
        ended = asyncio.ensure_future(reader.read(1))
        ended.add_done_callback(lambda _: finished.put_nowait(None))
        for _ in range(len(watched)):
            entry = await finished.get()
            if entry is None:
                break
            try:
                await _send(writer, ([asked[id(entry)]], (entry.result,)))
            except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
                log.warning("a result cannot be given to another worker, which calls again: %s", error)
                await _send(writer, ([asked[id(entry)]], None))
        ended.cancel()
    except (OSError, EOFError, asyncio.IncompleteReadError):
        # The other process has gone; somebody else will ask.
        return
    finally:
        for entry in watched:
            with contextlib.suppress(ValueError):
                entry.watchers.remove(finished.put_nowait)
        writer.close()
        _running.discard(this)


async def _fetch(engine: Engine, owner: bytes, entries: list[Entry]) -> None:
    _running.add(this := asyncio.current_task())
    waiting = {entry.ticket.number: entry for entry in entries if entry.ticket is not None}
    writer: asyncio.StreamWriter | None = None
    try:
        place = folder()
        if place is None:
            return
        reader, writer = await asyncio.open_unix_connection(os.path.join(place, f"{owner.hex()}.sock"))
        await _send(writer, (engine.name, list(waiting)))
        while waiting:
            numbers, result = await _receive(reader)
            for number in numbers:
                if result is None:
                    entry = waiting.pop(number)
                    engine.call_here([entry])
                else:
                    engine.finish(waiting.pop(number), result[0])
    except (OSError, EOFError, asyncio.IncompleteReadError, NotImplementedError):
        # No such process on this machine any more, or it ended: what it has not given is called here.
        return
    except Exception:
        log.warning("results of another worker could not be read; the calls are made again", exc_info=True)
    finally:
        engine.call_here(list(waiting.values()))
        if writer is not None:
            writer.close()
        _running.discard(this)


async def _send(writer: asyncio.StreamWriter, message: Any) -> None:
    # By value what is defined in a script, which the other process has under another identity.
    data: bytes = cloudpickle.dumps(message)  # type: ignore[no-untyped-call]
    writer.write(struct.pack("<Q", len(data)) + data)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> Any:
    (size,) = struct.unpack("<Q", await reader.readexactly(8))
    if size > MOST:
        raise EOFError(f"a message of {size} bytes")
    return pickle.loads(await reader.readexactly(size))
