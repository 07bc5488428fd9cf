"""The coordinator's side of the connections: who is there, what is said, who gets what. One loop's thread."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.aio.limits.book import Book, Report
from pillarbox.aio.limits.client import BEAT, BROKEN, CONNECT, SILENCE
from pillarbox.aio.limits.frames import MAX_FRAME, Channel, welcome
from pillarbox.aio.limits.shared import Limits, check_name
from pillarbox.aio.limits.state import write_state

log = logging.getLogger("pillarbox")

MAX_STRANGERS = 64
"""Connections whose peer is not known yet. One more, and the oldest of them is cut off."""
MAX_BOOKS = 10_000
COMMIT = 0.002
"""Seconds in which what is granted is gathered, to be written down once."""
NOTE = 0.05
"""Seconds until what clients have reported is written down; they would report it again."""


class SharedStatistics(NamedTuple):
    """What all tasks of one gate have done so far."""

    calls: int
    """Calls begun, as far as is known."""
    held: int
    """Calls granted that may still begin."""
    cost: float
    clients: int
    cool_downs: int


class Session:
    """A client that is known by its secret."""

    def __init__(self, channel: Channel, writer: asyncio.StreamWriter) -> None:
        self.channel = channel
        self.writer = writer
        self.heard = 0.0
        self.client = ""
        self.gate: SharedGate | None = None


class SharedGate:
    """One gate: its accounts, and the connections of those who share it."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.sessions: dict[str, Session] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.told_over = False
        self.kept = book.limits.max_calls is not None or book.limits.max_cost is not None


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no count")
    return value


def _amount(value: Any) -> float:
    if type(value) not in (int, float) or not 0.0 <= value < math.inf:
        raise ValueError("no amount")
    return float(value)


class LimitServer:
    """Serves any number of gates. Confined to the thread of the loop that `serve` runs on."""

    def __init__(self, secret: bytes, path: Path | None, state: dict[str, Any] | None) -> None:
        self._secret = secret
        self._path = path
        self._gates: dict[str, SharedGate] = {}
        for name, book in (state or {}).get("gates", {}).items():
            self._gates[name] = SharedGate(Book.from_json(book, time.monotonic))
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._outbox: list[tuple[Session, dict[str, Any]]] = []
        self._commit_timer: asyncio.TimerHandle | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._port = 0

    async def serve(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._connected, host, port, limit=MAX_FRAME + 4096)
        self._port = int(self._server.sockets[0].getsockname()[1])
        self._write()
        self._sweep()
        for gate in self._gates.values():
            self._pump(gate)
        return self._port

    async def stop(self) -> dict[str, Any]:
        """Write down what is known, close every connection, wait for their ends; gives what is known."""
        for timer in (self._commit_timer, self._sweep_timer, *(gate.timer for gate in self._gates.values())):
            if timer is not None:
                timer.cancel()
        if self._server is not None:
            self._server.close()
        self._write()
        tasks = [*self._tasks]
        for writer in [*self._strangers, *(session.writer for session in self._sessions)]:
            writer.transport.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._server is not None:
            await self._server.wait_closed()
        return self._state()

    def statistics(self) -> dict[str, SharedStatistics]:
        """What has been done, by the names of the gates."""
        found = {}
        for name, gate in self._gates.items():
            book = gate.book
            held = book.committed - book.used
            found[name] = SharedStatistics(book.used, held, book.cost, len(gate.sessions), book.cool_downs)
        return found

    # -- connections --------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            session = await self._meet(reader, writer)
            if session is not None:
                await self._listen(session)
        except asyncio.CancelledError:
            # The server stops; who waits for that must not see a cancelled handler as an error.
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Session | None:
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        try:
            channel = await asyncio.wait_for(welcome(reader, writer, self._secret), CONNECT)
        except BROKEN as error:
            log.debug("a connection was refused: %s", error)
            return None
        finally:
            self._strangers.pop(writer, None)
        return Session(channel, writer)

    async def _listen(self, session: Session) -> None:
        self._sessions.add(session)
        session.heard = time.monotonic()
        try:
            while True:
                message = await session.channel.receive()
                session.heard = time.monotonic()
                self._hear(session, message)
        except BROKEN as error:
            log.debug("a connection has ended: %s", error)
        finally:
            self._sessions.discard(session)
            gate = session.gate
            if gate is not None and gate.sessions.get(session.client) is session:
                del gate.sessions[session.client]
                gate.book.lost(session.client)
                self._pump(gate)

    def _sweep(self) -> None:
        """Cut off who has been silent for long."""
        now = time.monotonic()
        for session in self._sessions:
            if now - session.heard > SILENCE:
                session.writer.transport.abort()
        self._sweep_timer = self._loop.call_later(BEAT, self._sweep)

    # -- messages -----------------------------------------------------------------------------

    def _hear(self, session: Session, message: dict[str, Any]) -> None:
        kind = message["is"]
        report = Report.from_json(message["report"])
        gate = session.gate
        if kind == "open" and gate is None:
            self._open(session, message, report)
            return
        if gate is None or gate.sessions.get(session.client) is not session:
            raise ValueError(f"{kind!r} out of turn")
        book = gate.book
        if kind == "bye":
            book.leave(session.client, report, _count(message["unspent"]), _amount(message["units"]))
            del gate.sessions[session.client]
            self._send(session, {"is": "bye"}, gate.kept)
        else:
            book.report(session.client, report)
            if kind == "want":
                units, head = _amount(message["units"]), _amount(message["head"])
                book.want(session.client, report.received, _count(message["calls"]), units, head)
            elif kind == "cool":
                seconds = book.cool_down(_amount(message["seconds"]))
                for other in gate.sessions.values():
                    if other is not session:
                        self._send(other, {"is": "cool", "seconds": seconds})
            elif kind == "beat":
                self._send(session, {"is": "beat"})
        self._pump(gate)

    def _open(self, session: Session, message: dict[str, Any], report: Report) -> None:
        name = check_name(message["gate"])
        limits = Limits.from_json(message["limits"])
        client = check_name(message["client"])
        gate = self._gates.get(name)
        if gate is None:
            if len(self._gates) >= MAX_BOOKS:
                raise ValueError("too many gates")
            gate = self._gates[name] = SharedGate(Book(limits, time.monotonic))
        if gate.book.limits != limits:
            difference = gate.book.limits.differences(limits)
            why = f"the limits of {name!r} are shared, and another task has {difference}"
            self._send(session, {"is": "no", "why": why})
            return
        old = gate.sessions.get(client)
        if old is not None:
            old.writer.transport.abort()
        session.gate = gate
        session.client = client
        gate.sessions[client] = session
        gate.book.register(client, report)
        self._send(session, {"is": "opened"}, True)
        cooling = gate.book.cooling()
        if cooling > 0.0:
            self._send(session, {"is": "cool", "seconds": cooling})
        if gate.told_over:
            self._send(session, {"is": "over", "why": gate.book.over})
        self._pump(gate)

    def _pump(self, gate: SharedGate) -> None:
        """Grant what may be granted, and come back when more may be."""
        if gate.timer is not None:
            gate.timer.cancel()
            gate.timer = None
        book = gate.book
        next_end = book.expire()
        why = book.over
        if why is not None and not gate.told_over:
            gate.told_over = True
            for session in gate.sessions.values():
                self._send(session, {"is": "over", "why": why}, gate.kept)
        grants, wait = book.grant()
        for grant in grants:
            message = {"is": "grant", "calls": grant.calls, "units": grant.units}
            self._send(gate.sessions[grant.client], message, gate.kept)
        if gate.kept:
            self._commit_in(NOTE)
        wait = min(max(wait, 0.001), next_end)
        if wait < math.inf:
            gate.timer = self._loop.call_later(wait, self._pump, gate)

    # -- what is said, after it is written down -----------------------------------------------

    def _send(self, session: Session, message: dict[str, Any], written: bool = False) -> None:
        """Send now, or, where it must be known after a restart, when it is written down."""
        if self._path is None or not written:
            session.channel.send(message)
            return
        self._outbox.append((session, message))
        self._commit_in(COMMIT)

    def _commit_in(self, seconds: float) -> None:
        timer = self._commit_timer
        if self._path is None or (timer is not None and timer.when() <= self._loop.time() + seconds):
            return
        if timer is not None:
            timer.cancel()
        self._commit_timer = self._loop.call_later(seconds, self._commit)

    def _commit(self) -> None:
        # spec: RateLease!Write
        self._commit_timer = None
        try:
            self._write()
        except OSError as error:
            log.warning("the state of the coordinator cannot be written, so nothing is granted: %s", error)
            self._commit_timer = self._loop.call_later(1.0, self._commit)
            return
        outbox, self._outbox = self._outbox, []
        for session, message in outbox:
            session.channel.send(message)

    def _write(self) -> None:
        if self._path is not None:
            write_state(self._path, self._state())

    def _state(self) -> dict[str, Any]:
        gates = {name: gate.book.to_json() for name, gate in self._gates.items()}
        return {"secret": self._secret.hex(), "port": self._port, "gates": gates}
