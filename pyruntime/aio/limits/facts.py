"""The findings of tasks about endpoints at the coordinator: its accounts, its service, and their messages.

`FactService` is confined to the thread of the server's loop; messages are values, for any thread.
"""

# An address may have a user, a password or a key in it. So an endpoint is known here by a digest under the
# secret of the coordinator, which those who share it have anyway, and which says nothing to others.
#
# A report says of which change its task knew: if there is a later one, what the task has found is older than
# that, or as old, and it is told of it. So all tasks come to the same state in the same order
# (spec/AddressFacts.tla), whatever reports cross. The numbers begin anew with each account: it has a name of
# its own, by which tasks tell the numbers of two coordinators apart.
#
# Tasks that rest until the same moment would all probe then. So each of them rests a turn longer than the one
# before it, and the first that probes says so: the others wait for what it finds.

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from pillarbox.aio.endpoint_facts import Finding
from pillarbox.aio.limits.rate import MAX_NAMES, check_name
from pillarbox.rpc.codec import Codec
from pillarbox.rpc.connection import Connection
from pillarbox.rpc.server import Service, next_message
from pillarbox.validate import Amount, Count

FACTS = "facts"
"""The name under which a coordinator serves them."""
DIGEST_CHARACTERS = 32
MAX_ENDPOINTS = 1024
"""Endpoints of one name whose states are shared, at most: of others each task knows what it finds itself."""
MAX_REST_S = 3600.0
"""Seconds that a task may have others leave an endpoint alone, at most."""
FORGET_S = 60.0
"""Seconds after its last rest in which what is known outlives the last task."""
SAME_S = 0.1
"""Seconds between the ends of two rests, at most, that are one which several tasks have found."""
TURN_S = 0.05
"""Seconds between the probes of two tasks, if neither says that it probes."""
MAX_TURNS_S = 1.0
PROBE_HOLD_S = 5.0
"""Seconds for which the other tasks leave an endpoint alone that one of them probes."""

Digest = Annotated[
    str,
    f"{DIGEST_CHARACTERS} hexadecimal digits",
    lambda value: len(value) == DIGEST_CHARACTERS and not value.strip("0123456789abcdef"),
]


class OpenFacts(NamedTuple):
    """A task is there, first or again."""

    name: str
    client: str


class OpenedFacts(NamedTuple):
    """The coordinator has the task in its accounts."""


class AskFacts(NamedTuple):
    """A task has more endpoints, of which it wants to know."""


class Found(NamedTuple):
    """A task has found a change of state; number: of the last change that it knew."""

    endpoint: Digest
    number: Count
    finding: Finding


class Probes(NamedTuple):
    """A task probes an endpoint whose last change has this number."""

    endpoint: Digest
    number: Count


class Fact(NamedTuple):
    """Another task has found the change with this number."""

    endpoint: Digest
    number: Count
    finding: Finding


class Known(NamedTuple):
    """All that is known. account: a name for these numbers."""

    account: str
    facts: tuple[Fact, ...]


class Noted(NamedTuple):
    """The report of the task is the change with this number."""

    endpoint: Digest
    number: Count


class Probed(NamedTuple):
    """Another task probes the endpoint: it is to be left alone for so many seconds."""

    endpoint: Digest
    seconds: Amount


TO_FACTS = Codec(OpenFacts, AskFacts, Found, Probes)
TO_FINDER = Codec(OpenedFacts, Known, Fact, Noted, Probed)


@dataclass
class _Known:
    """The state of one endpoint. until: the time at which its rest is over, or at which it was well again."""

    number: int
    finding: Finding
    until: float
    probed_until: float = -math.inf


@dataclass
class FactAccount:
    """The states of the endpoints of one name, and the connections of the tasks that share them."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    known: dict[str, _Known] = field(default_factory=dict)
    connections: dict[str, Connection] = field(default_factory=dict)

    def is_over(self, now: float) -> bool:
        """Return True if no task is connected, and no state is worth keeping."""
        latest = max((each.until for each in self.known.values()), default=-math.inf)
        return not self.connections and now > latest + FORGET_S

    def fact(self, endpoint: str, now: float, turn: int) -> Fact:
        """The state of an endpoint, for the task whose turn to probe it is so late."""
        known = self.known[endpoint]
        rests = known.finding
        if rests.is_rest:
            left = max(0.0, known.until - now, known.probed_until - now)
            rests = rests._replace(seconds=left + min(MAX_TURNS_S, turn * TURN_S))
        return Fact(endpoint, known.number, rests)


class FactService(Service):
    """Serves the findings of any number of names. Confined to the thread of the server's loop.

    clock: seconds, which never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.accounts: dict[str, FactAccount] = {}

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """See `Service`."""
        opening: OpenFacts = TO_FACTS.from_json([OpenFacts.__name__, *hello])
        account = self._open(connection, opening)
        if account is None:
            return
        client = opening.client
        try:
            while True:
                message = await next_message(connection, account.connections, client, TO_FACTS, OpenFacts)
                if isinstance(message, Found):
                    self._found(account, client, message)
                elif isinstance(message, Probes):
                    self._probes(account, client, message)
                else:
                    self._say_all(account, connection)
        finally:
            if account.connections.get(client) is connection:
                del account.connections[client]

    def _open(self, connection: Connection, opening: OpenFacts) -> FactAccount | None:
        # spec: AddressFacts!Register
        name, client, now = check_name(opening.name), check_name(opening.client), self._clock()
        account = self.accounts.get(name)
        if account is None or account.is_over(now):
            if len(self.accounts) >= MAX_NAMES:
                self.accounts = {each: a for each, a in self.accounts.items() if not a.is_over(now)}
            if len(self.accounts) >= MAX_NAMES:
                connection.send("no", f"{MAX_NAMES:,} names of limits are in use")
                return None
            account = self.accounts[name] = FactAccount()
        old = account.connections.pop(client, None)
        if old is not None:
            old.abort()
        account.connections[client] = connection
        connection.send(*TO_FINDER.to_json(OpenedFacts()))
        self._say_all(account, connection)
        return account

    def _say_all(self, account: FactAccount, connection: Connection) -> None:
        now, turn = self._clock(), len(account.connections)
        facts = tuple([account.fact(endpoint, now, turn) for endpoint in account.known])
        connection.send(*TO_FINDER.to_json(Known(account.name, facts)))

    def _found(self, account: FactAccount, client: str, message: Found) -> None:
        # spec: AddressFacts!Take
        endpoint, finding, now = message.endpoint, message.finding, self._clock()
        known, connection = account.known.get(endpoint), account.connections[client]
        if known is None and len(account.known) >= MAX_ENDPOINTS:
            return
        number = 0 if known is None else known.number
        if known is not None and message.number != number:
            fact = account.fact(endpoint, now, len(account.connections))
            connection.send(*TO_FINDER.to_json(fact))
            return
        until = now + min(finding.seconds, MAX_REST_S)
        if known is None or not _is_same(known, finding, until):
            number += 1
            account.known[endpoint] = _Known(number, finding, until)
            others = [each for each in account.connections.values() if each is not connection]
            for turn, other in enumerate(others, 1):
                other.send(*TO_FINDER.to_json(account.fact(endpoint, now, turn)))
        connection.send(*TO_FINDER.to_json(Noted(endpoint, number)))

    def _probes(self, account: FactAccount, client: str, message: Probes) -> None:
        known, now = account.known.get(message.endpoint), self._clock()
        if known is None or known.number != message.number or now < known.probed_until:
            return
        known.probed_until = now + PROBE_HOLD_S
        others = [each for name, each in account.connections.items() if name != client]
        for turn, other in enumerate(others, 1):
            seconds = PROBE_HOLD_S + min(MAX_TURNS_S, turn * TURN_S)
            other.send(*TO_FINDER.to_json(Probed(message.endpoint, seconds)))


def _is_same(known: _Known, finding: Finding, until: float) -> bool:
    """Return True if it is the change that is known, found by another operator of the same process."""
    if not (finding.is_rest and known.finding.is_rest):
        return finding.is_rest == known.finding.is_rest
    return abs(until - known.until) <= SAME_S
