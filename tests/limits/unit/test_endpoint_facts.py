"""Findings about endpoints that tasks of several processes share by a coordinator: in virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Options, Rate, async_map
from pillarbox.aio.endpoint_facts import Finding
from pillarbox.aio.endpoint_health import FIRST_REST_S
from pillarbox.aio.endpoint_pool import EndpointPool, Journey
from pillarbox.aio.limits.fact_link import MAX_REPORTS, REPORT_INTERVAL_S, FactLink
from pillarbox.aio.limits.facts import (
    FACTS,
    FORGET_S,
    MAX_ENDPOINTS,
    MAX_TURNS_S,
    PROBE_HOLD_S,
    TO_FACTS,
    FactService,
    Found,
    OpenFacts,
)
from pillarbox.aio.limits.rate import LocalLimiter
from pillarbox.aio.service_addresses import Spread
from pillarbox.clients.addresses import addresses_of
from pillarbox.rpc.connection import Connection, RpcHandle, connect
from tests.aio.replies import Reply, is_dead, refuses
from tests.aio.virtual import now, play
from tests.limits.unit.virtual_coordinator import SECRET, VirtualCoordinator, VirtualLimits
from tests.rpc.unit.virtual_network import HOST, PORT, NetLoop, on_net
from tests.search import examples
from tests.waiting import until

URLS = ("http://one/v1", "http://two/v1", "http://three/v1")
HANDLE = RpcHandle(((HOST, PORT),), SECRET, FACTS)


class Process:
    """Stands for the model of a client: a pool is known by the object, an endpoint by its text."""

    def __repr__(self) -> str:
        return "a model"


class OnlyFacts(VirtualLimits):
    """Shares findings: a rate that is shared would hold calls back while there is no coordinator."""

    def open_for(self, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> Any:
        return LocalLimiter(rate, max_calls, max_cost, asyncio.get_running_loop().time)


class Service:
    """A service at several addresses; `replies` says how one answers, else after 50 ms. For all tasks."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.requests: dict[str, list[tuple[str, float]]] = {}

    async def ask(self, url: str, task: str) -> None:
        self.requests.setdefault(task, []).append((url, now()))
        if (reply := self.replies.get(url)) is not None:
            await reply()
        else:
            await asyncio.sleep(0.05)

    def of(self, task: str, url: str) -> list[float]:
        """The times of the requests of a task at an address."""
        return [at for to, at in self.requests.get(task, []) if to == url]


class Task:
    """A task of the job, in a process of its own, as far as it knows; rows come until it is stopped."""

    def __init__(self, service: Service, name: str, pause: float = 0.02, **more: Any) -> None:
        self.addresses = addresses_of(URLS, URLS, Process())
        self._service, self._name, self._pause = service, name, pause
        self.done = 0
        self.calls = True
        self._ended = False
        options = Options(capacity=4, limits=OnlyFacts(), ordered=False, **more)
        self.running = asyncio.ensure_future(self._run(options))

    async def _run(self, options: Options) -> None:
        async for _ in async_map(self._rows(), self._call, options=options):
            self.done += 1

    async def _rows(self) -> Any:
        row = 0
        while not self._ended:
            if self.calls:
                yield (row := row + 1)
            await asyncio.sleep(self._pause)

    async def _call(self, row: int) -> int:
        await self.addresses.call(self._service.ask, self._name)
        return row

    @property
    def states(self) -> dict[str, str]:
        return {each.url: each.state for each in self.addresses.pool().all}

    async def stop(self) -> None:
        self._ended = True
        await self.running


@pytest.mark.contract(
    "An address that one task found dead gets no call of the tasks of other processes but probes.",
    convicts=["told_rest_is_ignored"],
)
@pytest.mark.parametrize("reply", [is_dead(), refuses(503, 20.0), refuses(429)], ids=["dead", "503", "429"])
def test_an_address_that_one_task_found_dead_gets_no_call_of_another_but_probes(reply: Reply) -> None:
    service = Service()

    async def script() -> None:
        async with VirtualCoordinator():
            second = Task(service, "b")
            await asyncio.sleep(2.0)
            assert len(service.of("b", URLS[0])) > 5
            # The second one calls nothing until it has been told.
            second.calls = False
            await asyncio.sleep(0.1)
            service.requests.clear()
            service.replies[URLS[0]] = reply
            first = Task(service, "a", 0.001)
            await asyncio.sleep(1.0)
            assert second.states[URLS[0]] != "closed"
            told_at = now()
            second.calls = True
            await asyncio.sleep(15.0)
            # Each rest is twice as long as the one before, whoever finds it; a 503 is believed for its time.
            probes = len([at for at in service.of("b", URLS[0]) if at > told_at])
            probes += len([at for at in service.of("a", URLS[0]) if at > told_at + 0.01])
            assert probes <= 8
            assert len(service.of("b", URLS[1])) > 100
            for task in (first, second):
                await task.stop()

    on_net(script)


@pytest.mark.contract(
    "An address comes back for all tasks when the probe of one of them is answered.",
    convicts=["told_well_is_ignored", "well_is_not_reported"],
)
def test_an_address_comes_back_for_all_tasks_when_the_probe_of_one_is_answered() -> None:
    service = Service()
    service.replies[URLS[0]] = is_dead(until=10.0)

    async def script() -> None:
        async with VirtualCoordinator():
            first = Task(service, "a")
            # It makes a call so seldom that it does not probe by chance.
            second = Task(service, "b", 7.0)
            await asyncio.sleep(9.0)
            assert first.states[URLS[0]] != "closed" != second.states[URLS[0]]
            asked = len(service.of("b", URLS[0]))
            await until(lambda: first.states[URLS[0]] == "closed")
            await asyncio.sleep(0.01)
            assert second.states[URLS[0]] == "closed"
            assert len(service.of("b", URLS[0])) == asked
            for task in (first, second):
                await task.stop()

    on_net(script)


@pytest.mark.contract(
    "Where all addresses rest a task calls again as soon as the probe of another one is answered.",
    convicts=["told_return_wakes_none"],
)
@pytest.mark.parametrize("tasks", [2, 4])
def test_a_task_that_waits_for_all_addresses_goes_on_with_the_probe_of_another(tasks: int) -> None:
    service = Service()
    service.replies = {url: refuses(503, 4.0, until=10.0) for url in URLS}

    async def script() -> list[float]:
        async with VirtualCoordinator():
            every = [Task(service, "abcd"[number], retry=3) for number in range(tasks)]
            await asyncio.sleep(30.0)
            for task in every:
                await task.stop()
        found = {
            name: min(at for _, at in requests if at >= 10.0) for name, requests in service.requests.items()
        }
        return sorted(found.values())

    began = on_net(script)
    assert len(began) == tasks
    # The answer to the probe, and its way to the others: not the five seconds for which they leave it alone.
    assert began[-1] - began[0] < 0.1


@pytest.mark.contract("One task at a time probes an address that rests, also where none of them is answered.")
@pytest.mark.parametrize("hangs", [False, True])
def test_one_task_at_a_time_probes_an_address(hangs: bool) -> None:
    service = Service()
    service.replies[URLS[0]] = is_dead(until=8.0)

    async def slowly() -> None:
        await asyncio.sleep(1.0)
        raise ConnectionRefusedError(111, "refused")

    async def script() -> None:
        async with VirtualCoordinator():
            tasks = [Task(service, name, 0.01) for name in "abcdefgh"]
            await asyncio.sleep(4.0)
            if hangs:
                service.replies[URLS[0]] = slowly
            service.requests.clear()
            await asyncio.sleep(26.0 if hangs else 3.9)
            probes = sorted(at for name in "abcdefgh" for at in service.of(name, URLS[0]))
            # As many as rests, not eight times as many; two may begin before they know of each other.
            assert 1 <= len(probes) <= 4
            for task in tasks:
                await task.stop()

    on_net(script)


@pytest.mark.contract(
    "While a coordinator is away a task goes on with what it knows of addresses itself, and tells it later."
)
def test_a_lost_coordinator_changes_nothing() -> None:
    service = Service()
    service.replies[URLS[0]] = is_dead(until=60.0)

    async def script() -> None:
        tasks = [Task(service, name) for name in "ab"]
        await asyncio.sleep(5.0)
        # Each has found out, and calls the others.
        assert all(task.states[URLS[0]] != "closed" and task.done > 200 for task in tasks)
        async with VirtualCoordinator() as coordinator:
            await asyncio.sleep(3.0)
            (account,) = coordinator.facts.accounts.values()
            assert [each.finding.is_rest for each in account.known.values()] == [True]
            third = Task(service, "c")
            await asyncio.sleep(0.01)
            assert third.states[URLS[0]] == "open"
        # Away again.
        await asyncio.sleep(70.0)
        for task in (*tasks, third):
            assert task.states[URLS[0]] == "closed"
            await task.stop()
        assert [task.done > 2000 for task in tasks] == [True, True]

    on_net(script)


@pytest.mark.contract("What was found of addresses is kept by a coordinator between two tasks, for a minute.")
def test_what_was_found_outlives_its_task_for_a_minute() -> None:
    service = Service()

    async def script() -> list[str]:
        found = []
        async with VirtualCoordinator():
            for pause in (1.0, 2.0 * FORGET_S + 20.0):
                service.replies[URLS[0]] = refuses(503, 20.0)
                first = Task(service, "a")
                await asyncio.sleep(1.0)
                await first.stop()
                service.replies.clear()
                await asyncio.sleep(pause)
                second = Task(service, "b", 0.5)
                await asyncio.sleep(0.1)
                found.append(second.states[URLS[0]])
                await second.stop()
        return found

    assert on_net(script) == ["open", "closed"]


def pool_of_task(urls: tuple[str, ...] = URLS) -> EndpointPool:
    return EndpointPool(Spread(urls, (1.0,) * len(urls)), asyncio.get_running_loop().time, "a model")


def link_of(pool: EndpointPool) -> FactLink:
    link = FactLink(HANDLE, "g")
    link.share(pool)
    link.start()
    return link


def refuse_at(pool: EndpointPool, url: str) -> None:
    journey = Journey(pool)
    journey.next(url)
    journey.failed(ConnectionRefusedError(111, "refused"))


class Spied(FactService):
    """Keeps the texts of all messages."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.texts: list[str] = []

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        receive, send = connection.receive, connection.send

        async def spied() -> list[Any]:
            message = await receive()
            self.texts.append(repr(message))
            return message

        def kept(kind: str, *fields: object) -> Any:
            self.texts.append(repr((kind, *fields)))
            return send(kind, *fields)

        connection.receive, connection.send = spied, kept  # type: ignore[method-assign]
        await super().serve(connection, hello)


@pytest.mark.contract("No address, and nothing that is secret in it, is sent to a coordinator.")
def test_no_address_is_sent() -> None:
    urls = ("http://me:p4ssw0rd@one/v1", "http://two/v1?key=s3cret", "http://three/v1")

    async def script() -> list[str]:
        async with VirtualCoordinator() as coordinator:
            clock = asyncio.get_running_loop().time
            spied = coordinator._server._others[FACTS] = Spied(clock)
            pools = [pool_of_task(urls) for _ in range(2)]
            links = [link_of(pool) for pool in pools]
            await asyncio.sleep(0.1)
            for url in urls[:2]:
                refuse_at(pools[0], url)
            await asyncio.sleep(0.01)
            assert [each.state for each in pools[1].all] == ["open", "open", "closed"]
            for link in links:
                await link.close()
            return spied.texts

    texts = on_net(script)
    assert len(texts) >= 6
    for secret in ("p4ssw0rd", "s3cret", "me:", "one", "two", "http", "a model", "refused"):
        assert not any(secret in text for text in texts)


class Slow(FactService):
    """Takes each message a second after it has come."""

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        receive = connection.receive

        async def later() -> list[Any]:
            message = await receive()
            await asyncio.sleep(1.0)
            return message

        connection.receive = later  # type: ignore[method-assign]
        await super().serve(connection, hello)


@pytest.mark.contract(
    "Tasks whose findings about an address cross come to one state.", convicts=["late_reports_count"]
)
def test_tasks_whose_reports_cross_agree() -> None:
    async def script() -> None:
        async with VirtualCoordinator():
            pools = [pool_of_task() for _ in range(3)]
            links = [link_of(pool) for pool in pools]
            await asyncio.sleep(0.1)
            refuse_at(pools[0], URLS[0])
            await asyncio.sleep(1.0)
            probes = [Journey(pool) for pool in pools[:2]]
            for probe in probes:
                assert probe.next(URLS[0]).url == URLS[0]  # type: ignore[union-attr]
            # One is refused, and the other one answered, at the same moment.
            probes[0].failed(ConnectionRefusedError(111, "refused"))
            probes[1].answered()
            await asyncio.sleep(0.01)
            assert len({pool.all[0].health.is_open for pool in pools}) == 1
            for link in links:
                await link.close()

    on_net(script)


@pytest.mark.contract(
    "A change that a task finds while its report of an address is on its way is reported then.",
    convicts=["many_reports"],
)
def test_what_a_task_finds_before_its_report_is_noted_is_reported_then() -> None:
    async def script() -> None:
        async with VirtualCoordinator() as coordinator:
            coordinator._server._others[FACTS] = Slow(asyncio.get_running_loop().time)
            pools = [pool_of_task() for _ in range(2)]
            links = [link_of(pool) for pool in pools]
            await asyncio.sleep(0.1)
            refuse_at(pools[0], URLS[0])
            await asyncio.sleep(FIRST_REST_S)
            probe = Journey(pools[0])
            assert probe.next(URLS[0]).url == URLS[0]  # type: ignore[union-attr]
            probe.answered()
            await asyncio.sleep(5.0)
            assert [pool.all[0].state for pool in pools] == ["closed", "closed"]
            for link in links:
                await link.close()

    on_net(script)


@pytest.mark.contract(
    "A coordinator that was started again is told which addresses rest.", convicts=["restart_forgets_rests"]
)
def test_a_coordinator_that_was_started_again_is_told_which_addresses_rest() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        async with VirtualCoordinator() as coordinator:
            pools = [pool_of_task() for _ in range(2)]
            links = [link_of(pools[0])]
            await asyncio.sleep(0.1)
            refuse_at(pools[0], URLS[0])
            await asyncio.sleep(0.1)
            coordinator._server._others[FACTS] = FactService(loop.time)
            await loop.cut()
            await asyncio.sleep(1.0)
            links.append(link_of(pools[1]))
            await asyncio.sleep(0.1)
            assert [each.health.is_open for each in pools[1].all] == [True, False, False]
            for link in links:
                await link.close()

    on_net(script)


def test_reports_have_a_bound_in_each_second_and_none_is_lost() -> None:
    urls = tuple(f"http://host-{number}" for number in range(100))

    async def script() -> None:
        async with VirtualCoordinator() as coordinator:
            pools = [pool_of_task(urls) for _ in range(2)]
            links = [link_of(pool) for pool in pools]
            await asyncio.sleep(0.1)
            (account,) = coordinator.facts.accounts.values()
            for url in urls[:50]:
                refuse_at(pools[0], url)
            await asyncio.sleep(0.01)
            assert len(account.known) == MAX_REPORTS
            await asyncio.sleep(4 * REPORT_INTERVAL_S)
            assert len(account.known) == 50
            assert sum(each.health.is_open for each in pools[1].all) == 50
            for link in links:
                await link.close()

    on_net(script)


@pytest.mark.contract("A coordinator keeps what was found of at most 1,024 addresses under one name.")
def test_a_coordinator_keeps_a_bounded_number_of_addresses() -> None:
    async def script() -> None:
        async with VirtualCoordinator() as coordinator, connect(HANDLE) as connection:
            connection.send("open", FACTS, *TO_FACTS.to_json(OpenFacts("g", "c"))[1:])
            for number in range(MAX_ENDPOINTS + 10):
                found = Found(f"{number:032x}", 0, Finding(1.0, 1, False))
                connection.send(*TO_FACTS.to_json(found))
            await asyncio.sleep(1.0)
            (account,) = coordinator.facts.accounts.values()
            assert len(account.known) == MAX_ENDPOINTS

    on_net(script)


@pytest.mark.parametrize("digest", ["x" * 32, "a" * 31, "http://one", ""])
def test_what_is_no_digest_ends_its_connection(digest: str) -> None:
    async def script() -> None:
        async with VirtualCoordinator() as coordinator, connect(HANDLE) as connection:
            connection.send("open", FACTS, *TO_FACTS.to_json(OpenFacts("g", "c"))[1:])
            connection.send(*TO_FACTS.to_json(Found(digest, 0, Finding(1.0, 1, False))))
            # Those that say that it is there, and what is known.
            for _ in range(2):
                await connection.receive()
            with pytest.raises((EOFError, OSError)):
                await connection.receive()
            (account,) = coordinator.facts.accounts.values()
            assert account.known == {} and account.connections == {}

    on_net(script)


def test_a_coordinator_that_serves_no_findings_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pillarbox")
    service = Service()
    service.replies[URLS[0]] = is_dead()

    async def script() -> None:
        async with VirtualCoordinator() as coordinator:
            del coordinator._server._others[FACTS]
            task = Task(service, "a")
            await asyncio.sleep(3.0)
            await task.stop()
            assert task.done > 100

    on_net(script)
    assert [each for each in caplog.records if "findings" in each.getMessage()] == []


@pytest.mark.contract(
    "The probe of one task does not hold up that of another which is out.",
    convicts=["told_probe_holds_probe"],
)
def test_a_probe_that_is_out_goes_on_while_another_task_probes() -> None:
    async def script() -> None:
        pool = pool_of_task()
        refuse_at(pool, URLS[0])
        await asyncio.sleep(FIRST_REST_S)
        probe = Journey(pool)
        assert probe.next().url == URLS[0]  # type: ignore[union-attr]
        pool.told_probe(0, PROBE_HOLD_S)
        # It is cancelled: the next request may probe at once.
        probe.cancelled(False)
        probe = Journey(pool)
        assert probe.next(URLS[0]).url == URLS[0]  # type: ignore[union-attr]
        probe.answered()
        assert pool.all[0].state == "closed"

    play(script)


@pytest.mark.contract(
    "The answer to a request that began before does not end a rest that another task has found.",
    convicts=["told_keeps_period"],
)
def test_an_answer_to_a_request_of_before_a_rest_that_was_told_does_not_end_it() -> None:
    async def script() -> None:
        pool = pool_of_task()
        before = Journey(pool)
        before.next(URLS[0])
        pool.told(0, "channel", 1, Finding(5.0, 3, True))
        before.answered()
        assert pool.all[0].state == "open"
        await asyncio.sleep(5.0)
        # Its next rest is the fourth in a row.
        refuse_at(pool, URLS[0])
        assert pool.all[0].health.rests_until == now() + FIRST_REST_S * 8

    play(script)


def test_a_change_that_is_known_by_another_operator_of_the_process_is_taken_once() -> None:
    async def script() -> None:
        pool = pool_of_task()
        pool.told(0, "channel", 2, Finding(0.0, 0, False))
        pool.told(0, "channel", 1, Finding(5.0, 1, False))
        assert pool.all[0].state == "closed"
        pool.told(0, "channel", 3, Finding(5.0, 1, False))
        assert pool.all[0].state == "open"

    play(script)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**6), tasks=st.integers(2, 4), cuts=st.integers(0, 3), dies=st.booleans())
def test_when_nothing_is_on_its_way_all_tasks_have_the_state_of_the_coordinator(
    seed: int, tasks: int, cuts: int, dies: bool
) -> None:
    """As `Agree` of spec/AddressFacts.tla: addresses are ill now and then, connections break."""
    draw = random.Random(seed)

    async def live(pool: EndpointPool, ill: Counter[str], ends: float) -> None:
        while now() < ends:
            journey = Journey(pool)
            if (at := journey.next()) is not None:
                await asyncio.sleep(draw.choice([0.0, 0.001, 0.2]))
                if ill[at.url]:
                    journey.failed(ConnectionRefusedError(111, "refused"))
                else:
                    journey.answered()
            await asyncio.sleep(draw.uniform(0.001, 0.3))

    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        pools = [pool_of_task() for _ in range(tasks)]
        links = [link_of(pool) for pool in pools]
        ill: Counter[str] = Counter()
        living = [asyncio.ensure_future(live(pool, ill, 20.0)) for pool in pools]
        async with VirtualCoordinator() as coordinator:
            for moment in sorted(draw.uniform(0.0, 19.0) for _ in range(8 + cuts)):
                await asyncio.sleep(max(0.0, moment - now()))
                if draw.random() < cuts / (8 + cuts):
                    await loop.cut()
                else:
                    url = draw.choice(URLS)
                    ill[url] = 1 - ill[url]
                if dies and draw.random() < 0.2:
                    clock = loop.time
                    coordinator.facts = coordinator._server._others[FACTS] = FactService(clock)
                    await loop.cut()
            await asyncio.wait(living)
            # Reports wait for their turn, and tasks for their connection.
            await asyncio.sleep(5.0)
            (account,) = coordinator.facts.accounts.values()
            digests = links[0]._places
            for link, pool in zip(links, pools, strict=True):
                assert link._channel is not None and not link._due and not link._waits
                for digest in digests:
                    ((_, place),) = link._places[digest]
                    known = account.known.get(digest)
                    number, own = pool.finding(place, link._channel)
                    assert own.is_rest == (known is not None and known.finding.is_rest)
                    assert number == (0 if known is None else known.number)
            for link in links:
                await link.close()

    on_net(script)


def test_turns_to_probe_have_a_bound() -> None:
    assert MAX_TURNS_S < PROBE_HOLD_S
