"""The coordinator's side of the connections: who is there, what is said, who gets what. One loop's thread."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.aio.limits.book import Book
from pillarbox.aio.limits.messages import (
    SERVICE,
    TO_COORDINATOR,
    TO_TASK,
    CoolDown,
    Exhausted,
    Granted,
    Leave,
    Left,
    Open,
    Opened,
    Want,
)
from pillarbox.aio.limits.shared import check_name
from pillarbox.aio.limits.state import VERSION, write_state
from pillarbox.rpc.connection import BROKEN, Connection
from pillarbox.rpc.server import RpcServer

log = logging.getLogger("pillarbox")

MAX_BOOKS = 10_000
SWEEP_INTERVAL_S = 5.0
"""Between two looks for gates that nobody has used for long."""
FORGET = 600.0
"""Seconds without a client after which a gate is put away: what has no sums is forgotten."""
COMMIT = 0.002
"""Seconds in which what is granted is gathered, to be written down once."""
NOTE = 0.05
"""Seconds until what clients have reported is written down; they would report it again."""
AGAIN = 1.0
"""Seconds until what could not be written down is tried again."""


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
    """A connection of a task, and what is on the books for it."""

    def __init__(self, connection: Connection, client: str, gate: SharedGate) -> None:
        self.connection = connection
        self.client = client
        self.gate = gate

    def send(self, message: Any) -> None:
        """Send now. Who cannot be told is cut off, which is no trouble of the others."""
        try:
            told = self.connection.send(*TO_TASK.to_json(message))
        except (*BROKEN, RuntimeError) as error:
            log.debug("a message cannot be sent: %s", error)
            told = False
        if not told:
            self.connection.abort()


class SharedGate:
    """One gate: its accounts, and the connections of those who share it."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.sessions: dict[str, Session] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.told_over = False
        self.idle_at = time.monotonic()
        """When its last client left."""
        self.is_put_away = False
        self._text: str | None = None
        self.kept = book.limits.max_calls is not None or book.limits.max_cost is not None

    @property
    def is_idle(self) -> bool:
        """True if no client is there, or may come back to what it holds."""
        return not self.sessions and not self.book.clients

    def use(self) -> None:
        """Somebody uses it again."""
        self.is_put_away = False
        self._text = None

    def put_away(self) -> None:
        """Keep only the sums of an idle one."""
        self.book.forget_clients()
        self.is_put_away = True
        self._text = None

    def written(self) -> str:
        """The text to write down of it; made once for an idle one, however often it is written."""
        if self._text is not None:
            return self._text
        text = json.dumps(self.book.to_json())
        self._text = text if self.is_idle else None
        return text


class LimitServer:
    """Serves any number of gates. Confined to the thread of the loop that `serve` runs on."""

    def __init__(self, secret: bytes, path: Path | None, state: dict[str, Any] | None) -> None:
        self._secret = secret
        self._path = path
        self._gates: dict[str, SharedGate] = {}
        for name, book in (state or {}).get("gates", {}).items():
            self._gates[name] = SharedGate(Book.from_json(book, time.monotonic))
        self._rpc = RpcServer(secret)
        self._rpc.add(SERVICE, self)
        self._outbox: list[tuple[Session, Any]] = []
        self._commit_timer: asyncio.TimerHandle | None = None
        self._unwritten = False
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._port = 0
        self._is_stopping = False

    async def listen(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._port = await self._rpc.listen(host, port)
        try:
            self._write()
        except BaseException:
            await self._rpc.stop()
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
        await self._rpc.stop()
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

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """See `ConnectionService`."""
        session = self._open(connection, TO_COORDINATOR.from_json([Open.__name__, *hello]))
        if session is None:
            return
        heard = False
        try:
            while True:
                self._hear(session, TO_COORDINATOR.from_json(await connection.receive()))
        except EOFError:
            heard = connection.is_heard_out()
        finally:
            gate = session.gate
            if gate.sessions.get(session.client) is session:
                gate.book.lost(session.client, heard)
                self._remove(session)
                self._pump(gate)

    def close(self) -> None:
        """See `ConnectionService`. Tasks come back to another coordinator, so none is refused."""

    def _remove(self, session: Session) -> None:
        del session.gate.sessions[session.client]
        session.gate.idle_at = time.monotonic()

    def _sweep(self) -> None:
        """Put away what nobody has used for long."""
        now = time.monotonic()
        for name, gate in [*self._gates.items()]:
            if gate.is_idle and not gate.is_put_away and now - gate.idle_at >= FORGET:
                self._put_away(name, gate)
        self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

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

    def _hear(self, session: Session, message: Any) -> None:
        gate, client = session.gate, session.client
        if gate.sessions.get(client) is not session or isinstance(message, Open):
            raise ValueError(f"{message!r:.200} out of turn")
        book = gate.book
        if isinstance(message, CoolDown):
            seconds = book.cool_down(message.seconds)
            for other in gate.sessions.values():
                if other is not session:
                    self._send(other, CoolDown(seconds))
        elif isinstance(message, Leave):
            book.leave(client, message.report, message.unspent, message.units)
            self._remove(session)
            self._send(session, Left(), gate.kept)
        else:
            book.report(client, message.report)
            if isinstance(message, Want):
                book.want(client, message.report.received, message.calls, message.units, message.head)
        self._pump(gate)

    def _open(self, connection: Connection, message: Open) -> Session | None:
        name, client = check_name(message.gate), check_name(message.client)
        if self._unwritten:
            connection.send("later", "its state cannot be written")
            return None
        gate = self._gates.get(name)
        if gate is None:
            if not self._has_room():
                why = f"{MAX_BOOKS:,} names of limits are in use, or have budgets: give operators one name"
                connection.send("no", why)
                return None
            gate = self._gates[name] = SharedGate(Book(message.limits, time.monotonic))
        book = gate.book
        if book.limits != message.limits:
            difference = book.limits.differences(message.limits)
            connection.send("no", f"the limits of {name!r} are shared, and another task has {difference}")
            return None
        if message.before is not None:
            check_name(message.before[0])
        old = gate.sessions.get(client)
        if old is not None:
            old.connection.abort()
        gate.use()
        session = gate.sessions[client] = Session(connection, client, gate)
        if message.before is not None:
            book.count_before(*message.before)
        book.register(client, message.report)
        self._send(session, Opened(), True)
        cooling = book.cooling()
        if cooling > 0.0:
            self._send(session, CoolDown(cooling))
        if gate.told_over:
            self._send(session, Exhausted(str(book.over)))
        self._pump(gate)
        return session

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
                self._send(session, Exhausted(why), gate.kept)
        grants, wait = book.grant()
        for grant in grants:
            self._send(gate.sessions[grant.client], Granted(grant.calls, grant.units), gate.kept)
        if gate.kept:
            self._commit_in(NOTE)
        wait = min(max(wait, 0.001), next_end)
        if wait < math.inf:
            gate.timer = self._loop.call_later(wait, self._pump, gate)

    # -- what is said, after it is written down -----------------------------------------------

    def _send(self, session: Session, message: Any, written: bool = False) -> None:
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
                session.connection.abort()
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
