"""Totals of tasks as the driver adds them up: attempts, dead tasks, tasks of long ago, nonsense."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from pillarbox.aio.totals import Totals
from pillarbox.rpc.connection import Connection, RefusedError, connect
from pillarbox.rpc.server import RpcServer
from pillarbox.rpc.totals_json import to_json
from pillarbox.spark import progress_channel
from pillarbox.spark.progress_channel import (
    ATTEMPTS,
    MAX_TASKS_KEPT,
    SERVICE,
    ProgressHandle,
    ProgressReporter,
    ProgressService,
    TaskAttempt,
)
from tests.rpc.unit.proxy import Proxy
from tests.waiting import until, wait_until


class Attempt:
    """An attempt of a task, as a service sees it."""

    def __init__(self, service: ProgressService, **who: Any) -> None:
        self._service = service
        self._name = uuid.uuid4().hex
        self._who = ATTEMPTS.from_json(attempt(**who))

    def says(self, **totals: Any) -> Attempt:
        self._service._heard(self._name, self._who, Totals(**totals))
        return self

    def ends(self) -> None:
        self._service._gone(self._name, True)

    def dies(self) -> None:
        self._service._gone(self._name, False)


def attempt(**who: Any) -> list[Any]:
    task = {"operator": 0, "stage": 0, "partition": 0, "attempt": 0, "query": None, "batch": None}
    return ATTEMPTS.to_json(TaskAttempt(**{**task, **who}))


@pytest.fixture
def service() -> ProgressService:
    return ProgressService()


def test_rows_are_those_of_the_latest_attempt_and_calls_those_of_all(service: ProgressService) -> None:
    Attempt(service).says(rows_in=50, results=40, calls=60, errors=1, cost=2.0).ends()
    Attempt(service, attempt=1).says(rows_in=9, results=8, calls=10, cost=0.5)
    totals = service.look().totals
    assert (totals.rows_in, totals.results) == (9, 8)
    assert (totals.calls, totals.errors, totals.cost) == (70, 1, 2.5)


def test_of_two_attempts_at_a_time_the_rows_of_the_one_that_was_not_killed_count(
    service: ProgressService,
) -> None:
    good = Attempt(service).says(results=10, calls=10)
    killed = Attempt(service, attempt=1).says(results=7, calls=7, in_flight=3)
    good.ends()
    assert service.look().running == 1
    killed.dies()
    seen = service.look()
    assert (seen.totals.results, seen.totals.calls, seen.totals.in_flight) == (10, 17, 0)
    assert (seen.running, seen.ended) == (0, 1)


def test_a_task_that_was_killed_is_not_in_flight_for_ever(service: ProgressService) -> None:
    killed = Attempt(service).says(calls=5, in_flight=64, capacity=64)
    seen = service.look()
    assert (seen.totals.in_flight, seen.running, seen.ended) == (64, 1, 0)
    killed.dies()
    seen = service.look()
    assert (seen.totals.in_flight, seen.totals.capacity, seen.totals.calls) == (0, 0, 5)
    assert (seen.running, seen.ended) == (0, 1)


def test_a_task_that_has_ended_is_in_the_totals_and_its_batch(service: ProgressService) -> None:
    one = Attempt(service, partition=1, query="q", batch=7).says(rows_in=3, results=3, calls=4)
    before = service.look().totals
    one.ends()
    for _ in range(2):
        assert service.look() == (before, 0, 1)
    (task,) = service.tasks()
    assert (task.partition, task.totals.calls, task.attempts, task.running) == (1, 4, 1, False)
    assert service.batch("q", 7).results == 3


def test_a_task_that_runs_again_after_it_ended_counts_its_rows_once(service: ProgressService) -> None:
    Attempt(service).says(results=10, calls=10).ends()
    again = Attempt(service, attempt=1).says(results=4, calls=4)
    seen = service.look()
    assert (seen.totals.results, seen.totals.calls, seen.running, seen.ended) == (4, 14, 1, 0)
    again.says(results=10, calls=10).ends()
    seen = service.look()
    assert (seen.totals.results, seen.totals.calls, seen.ended) == (10, 20, 1)
    (task,) = service.tasks()
    assert (task.totals.results, task.totals.calls, task.attempts) == (10, 20, 2)


def test_however_many_tasks_there_were_only_so_many_are_kept_apart(service: ProgressService) -> None:
    count = MAX_TASKS_KEPT + 20
    for number in range(count):
        Attempt(service, stage=number, partition=number, query="q", batch=number).says(results=1).ends()
    seen = service.look()
    assert (seen.totals.results, seen.ended) == (count, count)
    assert len(service.tasks()) == MAX_TASKS_KEPT
    assert service.batch("q", 0).results == 0
    assert service.batch("q", count - 1).results == 1
    assert not service._attempts


def test_micro_batches_are_told_apart_by_query_and_number(service: ProgressService) -> None:
    for number, (query, batch) in enumerate([("q", 1), ("q", 1), ("q", 2), ("r", 1)]):
        Attempt(service, partition=number, query=query, batch=batch).says(results=10**number)
    assert service.batch("q", 1).results == 11
    assert service.batch("q", 2).results == 100
    assert service.batch("r", 1).results == 1000
    assert service.batch("r", 2) == Totals()


# -- over a connection --------------------------------------------------------------------------


def serving(service: ProgressService) -> RpcServer:
    return RpcServer(SERVICE, service)


async def opened(connection: Connection, about: Any, name: str, is_known: bool = False) -> Connection:
    connection.send("open", SERVICE, name, about, is_known)
    assert await connection.receive() == ["opened"]
    return connection


def connected(host: RpcServer) -> AbstractAsyncContextManager[Connection]:
    return connect(host.handle())


@pytest.mark.parametrize("about", [["TaskAttempt", 1], attempt(stage=-1), None])
def test_a_task_that_makes_no_sense_is_refused(service: ProgressService, about: Any) -> None:
    async def run() -> None:
        async with connected(host) as connection:
            with pytest.raises(RefusedError):
                await opened(connection, about, "a")

    with serving(service) as host:
        asyncio.run(run())
    assert service.look() == (Totals(), 0, 0)


def test_totals_that_make_no_sense_are_not_counted_and_harm_nobody(service: ProgressService) -> None:
    async def run() -> None:
        async with connected(host) as good, connected(host) as other:
            await opened(good, attempt(), "a")
            await opened(other, attempt(partition=1), "b")
            good.send("totals", to_json(Totals(results=1)))
            other.send("totals", to_json(Totals(results=1))[:-1])
            with pytest.raises(RefusedError):
                await other.receive()
            good.send("leave")
            assert await good.receive() == ["left"]

    with serving(service) as host:
        asyncio.run(run())
    assert service.look() == (Totals(results=1), 0, 1)


@pytest.mark.contract("The counts of a task whose process has died stay, and nothing of it is in flight.")
def test_the_connection_of_a_dead_task_is_missed() -> None:
    service = ProgressService(grace=0.1)

    async def run() -> None:
        async with connected(host) as connection:
            await opened(connection, attempt(), "a")
            connection.send("totals", to_json(Totals(calls=5, in_flight=3)))
            await until(lambda: service.look().totals.in_flight == 3)
        await until(lambda: service.look().running == 0)
        async with connected(host) as connection:
            # What it says now it has said before.
            with pytest.raises(RefusedError, match="counts as dead"):
                await opened(connection, attempt(), "a", True)

    with serving(service) as host:
        asyncio.run(run())
    assert (service.look().totals.calls, service.look().totals.in_flight) == (5, 0)


@pytest.mark.contract("Over broken connections the totals of a task come whole, and once.")
def test_over_broken_connections_the_totals_come_whole(service: ProgressService) -> None:
    calls = iter(range(1, 10_000))
    with serving(service) as host, Proxy(host.handle()) as proxy:
        reporter = ProgressReporter(ProgressHandle(proxy.handle, 0), lambda: Totals(calls=next(calls)))
        for connections in range(1, 4):
            before = service.look().totals.calls
            wait_until(lambda before=before: service.look().totals.calls > before)
            assert proxy.connections == connections
            proxy.cut()
        reporter.close()
        assert service.look() == (Totals(calls=next(calls) - 1), 0, 1)


class Job:
    """A job that has counted something."""

    def statistics(self) -> Totals:
        return Totals(results=7, in_flight=1)


def test_a_reporter_says_the_last_totals_at_the_end(
    service: ProgressService,
) -> None:
    with serving(service) as host:
        ProgressReporter(ProgressHandle(host.handle(), 3), Job().statistics).close()
        ((operator, *_, totals),) = service.tasks()
        assert (operator, totals.results, totals.in_flight) == (3, 7, 0)


def test_a_reporter_waits_once_for_a_driver_that_is_not_reached_and_not_for_one_that_has_ended(
    service: ProgressService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(service) as host:
        way = ProgressHandle(host.handle(), 0)
        served = ProgressReporter(way, Job().statistics)
        wait_until(lambda: service.look().running == 1)
    lost, late = ProgressReporter(way, Job().statistics), ProgressReporter(way, Job().statistics)
    wait_until(lambda: lost._is_lost and late._is_lost)
    # A wait takes these seconds: one for `ever` only the time-out of the test would end.
    ever, soon = 3600.0, 0.5
    for reporter, seconds, warnings in ((served, ever, 0), (lost, soon, 1), (late, ever, 1)):
        monkeypatch.setattr(progress_channel, "LAST_TOTALS_TIMEOUT_S", seconds)
        with caplog.at_level(logging.WARNING, logger="pillarbox"):
            reporter.close()
        assert caplog.text.count("does not see this task: it is not reached at 127.0.0.1:") == warnings
