"""The way of one task's findings about endpoints to a coordinator, and of those of other tasks to it.

Confined to the task's mailbox thread, but for `FactLink.share` and what pools call: these are for any thread.
"""

# A link is made for the first endpoints that a task uses, and never fails its job: what it brings saves calls
# to endpoints that are ill, and each task can find that out by itself. One report of an endpoint is on its
# way at a time, and says the state as it is then; so their number is bounded by that of the endpoints,
# however often these change their minds.

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
import uuid
from collections.abc import Callable
from functools import partial

from pillarbox.aio.endpoint_facts import EndpointStates
from pillarbox.aio.limits.facts import (
    DIGEST_CHARACTERS,
    TO_FACTS,
    TO_FINDER,
    AskFacts,
    Fact,
    Found,
    Known,
    Noted,
    OpenFacts,
    Probed,
    Probes,
)
from pillarbox.loop_thread import end, post
from pillarbox.rpc.connection import Connection, Reconnector, RpcHandle

log = logging.getLogger("pillarbox")

MAX_REPORTS = 16
"""Reports that a task makes in an interval, at most."""
REPORT_INTERVAL_S = 0.2

Place = tuple[EndpointStates, int]


class FactLink:
    """The findings of one task: see `SharedFacts`. handle: of the coordinator's service `FACTS`."""

    def __init__(self, handle: RpcHandle, name: str) -> None:
        self._way = Reconnector(handle)
        self._secret = handle.secret
        self._name = name
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._given: dict[EndpointStates, Callable[[int, bool], None]] = {}
        # On the mailbox thread.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._digests: dict[Place, str] = {}
        self._places: dict[str, list[Place]] = {}
        # What is to be reported, and the endpoints whose report is not noted yet.
        self._due: dict[str, Place] = {}
        self._waits: set[str] = set()
        # Reports that are left in this interval.
        self._left = MAX_REPORTS
        # The account that numbers the changes; None until it has said what is known.
        self._channel: tuple[str, str] | None = None

    def share(self, states: EndpointStates) -> None:
        """See `SharedFacts.share`."""
        if states in self._given:
            return
        with self._lock:
            if states in self._given:
                return
            self._given[states] = found = partial(self._found, states)
            loop = self._loop
        states.watch(found)
        if loop is not None:
            post(loop, self._add)

    def start(self) -> None:
        """See `SharedFacts.start`."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
        self._add()

    async def close(self) -> None:
        """See `SharedFacts.close`."""
        with self._lock:
            self._loop = None
            given = [*self._given.items()]
        for states, found in given:
            states.unwatch(found)
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            await end(task)

    # -- the endpoints ----------------------------------------------------------------------------

    def _add(self) -> None:
        """Share what was given since; connect for the first."""
        if self._loop is None:
            return
        known = {states for states, _ in self._digests}
        with self._lock:
            added = [states for states in self._given if states not in known]
        for states in added:
            for place, identity in enumerate(states.identities):
                digest = hmac.digest(self._secret, identity.encode(errors="replace"), "sha256").hex()
                digest = digest[:DIGEST_CHARACTERS]
                self._digests[states, place] = digest
                self._places.setdefault(digest, []).append((states, place))
        if self._task is None and self._places:
            self._task = self._loop.create_task(self._run())
        elif added and self._channel is not None:
            self._way.say(*TO_FACTS.to_json(AskFacts()))

    def _found(self, states: EndpointStates, place: int, is_probe: bool) -> None:
        """A request of this process has changed the state of an endpoint, or probes it. Any thread."""
        loop = self._loop
        if loop is not None:
            post(loop, self._note, (states, place), is_probe)

    def _note(self, at: Place, is_probe: bool) -> None:
        digest = self._digests.get(at)
        if digest is None or self._loop is None:
            return
        if not is_probe:
            self._due[digest] = at
            self._report()
        elif self._channel is not None and self._way.connection is not None:
            number, _ = at[0].finding(at[1], self._channel)
            self._way.say(*TO_FACTS.to_json(Probes(digest, number)))

    def _report(self) -> None:
        # spec: AddressFacts!Report
        if self._loop is None or self._channel is None:
            return
        ready = [digest for digest in self._due if digest not in self._waits]
        for digest in ready[: self._left]:
            states, place = self._due.pop(digest)
            self._waits.add(digest)
            self._left -= 1
            self._way.say(*TO_FACTS.to_json(Found(digest, *states.finding(place, self._channel))))
        if ready and self._timer is None:
            self._timer = self._loop.call_later(REPORT_INTERVAL_S, self._next_interval)

    def _next_interval(self) -> None:
        self._timer = None
        self._left = MAX_REPORTS
        self._report()

    # -- the coordinator ----------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._way.run(lambda: TO_FACTS.to_json(OpenFacts(self._name, self._id))[1:], self._talk)
        except Exception as error:
            # Such as a coordinator of an earlier version, which serves none.
            log.debug("findings about endpoints are not shared: %r", error)

    async def _talk(self, connection: Connection) -> None:
        try:
            while True:
                message = TO_FINDER.from_json(await connection.receive())
                if isinstance(message, Known):
                    self._known(message)
                elif self._channel is None:
                    raise ValueError(f"{message!r:.200} out of turn")
                elif isinstance(message, Noted):
                    self._waits.discard(message.endpoint)
                    for states, place in self._places.get(message.endpoint, ()):
                        states.noted(place, self._channel, message.number)
                elif isinstance(message, Fact):
                    self._waits.discard(message.endpoint)
                    self._due.pop(message.endpoint, None)
                    self._take(message, self._channel)
                elif isinstance(message, Probed):
                    for states, place in self._places.get(message.endpoint, ()):
                        states.told_probe(place, message.seconds)
                self._report()
        finally:
            # spec: AddressFacts!Lost
            self._channel = None
            self._waits.clear()

    def _take(self, fact: Fact, channel: tuple[str, str]) -> None:
        for states, place in self._places.get(fact.endpoint, ()):
            states.told(place, channel, fact.number, fact.finding)

    def _known(self, message: Known) -> None:
        self._channel = channel = message.account, self._name
        told = {fact.endpoint: fact for fact in message.facts}
        for digest, places in self._places.items():
            fact = told.get(digest)
            for states, place in places:
                _, own = states.finding(place, channel)
                if fact is None:
                    # spec: AddressFacts!Register
                    if own.is_rest:
                        self._due.setdefault(digest, (states, place))
                elif digest in self._due and own.is_rest != fact.finding.is_rest:
                    # What was found while there was no coordinator is later than what it knew.
                    states.noted(place, channel, fact.number)
                else:
                    self._due.pop(digest, None)
                    states.told(place, channel, fact.number, fact.finding)
