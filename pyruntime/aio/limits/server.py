"""The coordinator's side of the connections: who is there, what is said, who gets what. One loop's thread."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from pathlib import Path
from typing import Any

from pillarbox.aio.limits.book import Book, Report
from pillarbox.aio.limits.sessions import Session, SharedGate, SharedStatistics
from pillarbox.aio.limits.shared import Limits, check_name
from pillarbox.aio.limits.state import VERSION, write_state
from pillarbox.wire.frames import BEAT, BROKEN, CONNECT, SILENCE, Channel
from pillarbox.wire.listener import Listener

log = logging.getLogger("pillarbox")

MAX_BOOKS = 10_000
FORGET = 600.0
"""Seconds without a client after which a gate is put away: what has no sums is forgotten."""
COMMIT = 0.002
"""Seconds in which what is granted is gathered, to be written down once."""
NOTE = 0.05
"""Seconds until what clients have reported is written down; they would report it again."""
AGAIN = 1.0
"""Seconds until what could not be written down is tried again."""


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
        self._sessions: set[Session] = set()
        self._listener = Listener(secret, self._listen, connect=CONNECT)
        self._outbox: list[tuple[Session, dict[str, Any]]] = []
        self._commit_timer: asyncio.TimerHandle | None = None
        self._unwritten = False
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._port = 0
        self._is_stopping = False

    async def serve(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._port = await self._listener.listen(host, port)
        try:
            self._write()
        except BaseException:
            await self._listener.stop()
            raise
        self._sweep()
        for gate in self._gates.values():
            self._pump(gate)
        return self._port

    async def stop(self) -> tuple[dict[str, Any], bool]:
        """Close every connection, wait for their ends, write down what is known; nothing is written later.

        Gives what is known, and whether it is written down, where that was asked for.
        """
        # What clients say in their last turn, and that they are lost, sets no timer.
        self._is_stopping = True
        for timer in (self._commit_timer, self._sweep_timer, *(gate.timer for gate in self._gates.values())):
            if timer is not None:
                timer.cancel()
        await self._listener.stop()
        written = True
        try:
            self._write()
        except OSError as error:
            # Nothing was granted that is not in the file: who starts from it counts too much at most.
            log.warning("the last sums of the coordinator cannot be written: %s", error)
            written = False
        return json.loads(self._state()), written

    def statistics(self) -> dict[str, SharedStatistics]:
        """What has been done, by the names of the gates."""
        found = {}
        for name, gate in self._gates.items():
            book = gate.book
            held = book.committed - book.used
            found[name] = SharedStatistics(book.used, held, book.cost, len(gate.sessions), book.cool_downs)
        return found

    # -- connections --------------------------------------------------------------------------

    async def _listen(self, channel: Channel, writer: asyncio.StreamWriter) -> None:
        session = Session(channel, writer)
        self._sessions.add(session)
        session.heard = time.monotonic()
        heard = False
        try:
            while True:
                message = await session.channel.receive()
                session.heard = time.monotonic()
                self._hear(session, message)
        except EOFError:
            heard = session.is_heard_out()
        except BROKEN as error:
            log.debug("a connection has ended: %s", error)
        finally:
            self._sessions.discard(session)
            gate = session.gate
            if gate is not None and gate.sessions.get(session.client) is session:
                gate.book.lost(session.client, heard)
                self._remove(session, gate)
                self._pump(gate)

    def _remove(self, session: Session, gate: SharedGate) -> None:
        del gate.sessions[session.client]
        gate.idle_at = time.monotonic()

    def _sweep(self) -> None:
        """Cut off who has been silent for long; put away what nobody has used for long."""
        now = time.monotonic()
        for session in self._sessions:
            if now - session.heard > SILENCE:
                session.cut()
        for name, gate in [*self._gates.items()]:
            if gate.is_idle and not gate.is_put_away and now - gate.idle_at >= FORGET:
                self._put_away(name, gate)
        self._sweep_timer = self._loop.call_later(BEAT, self._sweep)

    def _put_away(self, name: str, gate: SharedGate) -> bool:
        """Forget a gate that nobody uses, or, of one with sums, all but the sums; whether it is forgotten."""
        # A sum that is forgotten would be granted a second time.
        if gate.kept:
            gate.put_away()
        elif gate.book.is_fresh():
            del self._gates[name]
        else:
            return False
        self._commit_in(NOTE)
        return not gate.kept

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
            self._remove(session, gate)
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
        if self._unwritten:
            self._send(session, {"is": "later", "why": "its state cannot be written"})
            return
        gate = self._gates.get(name)
        if gate is None:
            if not self._has_room():
                why = f"{MAX_BOOKS:,} names of limits are in use, or have budgets: give operators one name"
                self._send(session, {"is": "no", "why": why})
                return
            gate = self._gates[name] = SharedGate(Book(limits, time.monotonic))
        if gate.book.limits != limits:
            difference = gate.book.limits.differences(limits)
            why = f"the limits of {name!r} are shared, and another task has {difference}"
            self._send(session, {"is": "no", "why": why})
            return
        old = gate.sessions.get(client)
        if old is not None:
            old.cut()
        gate.use()
        session.gate = gate
        session.client = client
        gate.sessions[client] = session
        if "before" in message:
            before, calls, cost = message["before"]
            gate.book.count_before(check_name(before), _count(calls), _amount(cost))
        gate.book.register(client, report)
        self._send(session, {"is": "opened"}, True)
        cooling = gate.book.cooling()
        if cooling > 0.0:
            self._send(session, {"is": "cool", "seconds": cooling})
        if gate.told_over:
            self._send(session, {"is": "over", "why": gate.book.over})
        self._pump(gate)

    def _has_room(self) -> bool:
        """Whether one more gate may be kept: of those that nobody uses, the one idle for longest goes."""
        if len(self._gates) < MAX_BOOKS:
            return True
        idle = [(gate.idle_at, name) for name, gate in self._gates.items() if gate.is_idle and not gate.kept]
        return any(self._put_away(name, self._gates[name]) for _, name in sorted(idle))

    def _pump(self, gate: SharedGate) -> None:
        """Grant what may be granted, and come back when more may be."""
        if self._is_stopping:
            return
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
            session.send(message)
            return
        self._outbox.append((session, message))
        self._commit_in(COMMIT)

    def _commit_in(self, seconds: float) -> None:
        timer = self._commit_timer
        if self._is_stopping:
            return
        if self._path is None or (timer is not None and timer.when() <= self._loop.time() + seconds):
            return
        if self._unwritten and timer is not None:
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
            if not self._unwritten:
                log.warning(
                    "the state of the coordinator cannot be written, so nothing is granted of a budget "
                    "until it can: %s",
                    error,
                )
            self._unwritten = True
            self._commit_timer = self._loop.call_later(AGAIN, self._commit)
            # Who waits for what cannot be written waits for a coordinator, and has his patience.
            unsaid, self._outbox = self._outbox, []
            for session, _ in unsaid:
                session.cut()
            return
        if self._unwritten:
            log.warning("the state of the coordinator can be written again")
        self._unwritten = False
        outbox, self._outbox = self._outbox, []
        for session, message in outbox:
            session.send(message)

    def _write(self) -> None:
        if self._path is not None:
            write_state(self._path, self._state())

    def _state(self) -> str:
        gates = ",".join(f"{json.dumps(name)}:{gate.written()}" for name, gate in self._gates.items())
        head = json.dumps({"version": VERSION, "secret": self._secret.hex(), "port": self._port})
        return f'{head[:-1]},"gates":{{{gates}}}}}'
