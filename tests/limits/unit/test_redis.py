"""Limits that are shared through a real Redis."""

from __future__ import annotations

import asyncio
import pickle
import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis", reason="the package redis is not installed")

from pillarbox import CoordinatorError, Rate, RedisCoordinator
from pillarbox.aio.limits import redis_limits
from pillarbox.aio.limits.shared import Limits, RunBudget, SharedLimits, open_limiter
from tests.limits.unit import calling
from tests.limits.unit.calling import Caller, most_in, wait_until
from tests.servers import fixtures
from tests.servers.redis_server import PASSWORD, RedisServer

pytestmark = pytest.mark.server

shared_redis, server = fixtures.shared_redis, fixtures.redis


async def all_call(shared: SharedLimits, limits: Limits, number: int, **how: Any) -> list[Caller]:
    async def one() -> Caller:
        async with Caller(shared.open(limits)) as caller:
            await caller.calls(**how)
        return caller

    return await asyncio.gather(*(one() for _ in range(number)))


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"url": f"redis://user:{PASSWORD}"}, ValueError, "url: the port must be a number"),
        ({"name": ""}, ValueError, "name='': must be 1 to 200"),
        ({"name": 7}, TypeError, "name=7: must be a str"),
        ({"patience": -1}, ValueError, "patience=-1"),
        ({"keep": 0}, ValueError, "keep=0"),
    ],
)
def test_a_bad_argument_is_refused_without_showing_the_password(
    given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=re.escape(says)) as caught:
        RedisCoordinator(**{"url": f"redis://:{PASSWORD}@host", **given})
    assert PASSWORD not in str(caught.value)


def test_it_pickles_and_its_text_does_not_show_the_password() -> None:
    shared = RedisCoordinator(f"redis://user:{PASSWORD}@host:1234/5", "n")
    again = pickle.loads(pickle.dumps(shared))
    assert repr(again) == "<limits 'n' in Redis at host:1234/5>"
    assert again.named() is again
    unnamed = RedisCoordinator("redis://host")
    assert unnamed.named().name != unnamed.named().name


@pytest.mark.contract(
    "A password of shared limits that the environment holds does not travel to tasks.",
    needs="Redis, which asks for the password",
)
def test_the_password_may_stand_in_the_environment(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_SECRET", PASSWORD)
    url = f"redis://127.0.0.1:{server.port}"
    written = pickle.dumps(RedisCoordinator(url, "env", password_env="REDIS_SECRET"))
    assert PASSWORD.encode() not in written
    shared = pickle.loads(written)
    assert len(run(all_call(shared, Limits(max_calls=3), 1))[0].begun) == 3
    monkeypatch.delenv("REDIS_SECRET")
    with pytest.raises(CoordinatorError, match="password_env='REDIS_SECRET': there is no such"):
        run(all_call(shared, Limits(max_calls=3), 1))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_limits.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=re.escape("pillarbox[redis]")):
        RedisCoordinator("redis://host")


@pytest.mark.contract(
    "A Redis holds the rate of all tasks together, and each gets some.", needs="Redis, whose script counts"
)
def test_the_rate_of_all_tasks_together_is_held_and_each_gets_some(server: RedisServer) -> None:
    shared = RedisCoordinator(server.url, "rate")
    them = run(all_call(shared, Limits(per_second=300.0, burst=0.25), 5, seconds=2.0))
    begun = sorted(at for caller in them for at in caller.begun)
    for window in (0.25, 0.5, 1.0, 2.0):
        assert most_in(begun, window) <= 300 * (0.25 + window) + 1
    assert len(begun) >= 0.85 * 300 * 2.0
    assert min(len(caller.begun) for caller in them) >= 0.3 * len(begun) / 5


def test_the_rate_is_held_over_processes(server: RedisServer) -> None:
    shared = RedisCoordinator(server.url, "processes")
    programs = [calling.start(shared, Limits(per_second=150.0, burst=0.25), 2.5) for _ in range(2)]
    outputs = [program.communicate(timeout=60)[0].split() for program in programs]
    # On a busy machine the time of one may be over before it is connected.
    assert any(outputs)
    begun = sorted(float(at) for output in outputs for at in output)
    for window in (0.25, 1.0, 2.0):
        assert most_in(begun, window) <= 150 * (0.25 + window) + 1
    # It goes on after the burst; how near it comes to the rate is a matter of when two processes get to run.
    assert len(begun) > 150 * 0.25 + 1


@pytest.mark.contract(
    "With a Redis max_calls holds to the last call, over tasks and jobs.", needs="Redis, whose script counts"
)
def test_max_calls_holds_to_the_last_call_over_tasks_and_jobs(server: RedisServer) -> None:
    shared = RedisCoordinator(server.url, "budget")
    them = run(all_call(shared, Limits(max_calls=203), 4))
    assert sum(len(caller.begun) for caller in them) == 203
    assert {caller.gate.exhausted for caller in them} == {"max_calls=203"}
    again = run(all_call(RedisCoordinator(server.url, "budget"), Limits(max_calls=203), 1))
    assert again[0].begun == [] and again[0].gate.exhausted == "max_calls=203"


def test_what_a_run_has_spent_before_counts_once(server: RedisServer) -> None:
    redis = RedisCoordinator(server.url, "spent")
    limits = Limits(max_calls=100)
    them = run(all_call(RunBudget(redis, "run", 60, 0.5), limits, 3, seconds=2.0))
    assert sum(len(caller.begun) for caller in them) == 40
    # By then its ledger has what was done in the meantime as well.
    them = run(all_call(RunBudget(redis, "run", 90, 1.0), limits, 2, seconds=2.0))
    assert [caller.begun for caller in them] == [[], []]
    assert them[0].gate.exhausted == "max_calls=100"


def test_max_cost_ends_the_calls_of_all(server: RedisServer) -> None:
    async def test() -> None:
        shared = RedisCoordinator(server.url, "cost")
        limits = Limits(max_cost=3.0)
        async with Caller(shared.open(limits)) as one, Caller(shared.open(limits)) as other:
            assert await one.call() and await other.call()
            one.gate.spend(1.0)
            other.gate.spend(2.5)
            while await one.call():
                await asyncio.sleep(0.01)
            assert one.gate.exhausted == "max_cost=3.0"

    run(test())


def test_units_are_shared_and_a_heavy_call_is_not_overtaken_for_ever(server: RedisServer) -> None:
    async def test() -> None:
        shared = RedisCoordinator(server.url, "units")
        limits = Limits.of(Rate(units_per_minute=60_000.0, weight=float, burst=0.25), None, None)

        async def one(units: float) -> int:
            async with Caller(shared.open(limits)) as caller:
                return await caller.calls(seconds=2.5, units=units)

        heavy, light = await asyncio.gather(one(500.0), one(10.0))
        assert heavy >= 2 and light >= 10
        assert 0.6 * 2500 <= 500 * heavy + 10 * light <= 1000 * (0.25 + 2.5) + 500

    run(test())


@pytest.mark.parametrize("per_second", [500.0, None])
def test_one_overload_cools_all_down(server: RedisServer, per_second: float | None) -> None:
    async def test() -> None:
        shared = RedisCoordinator(server.url, f"cool-{per_second}")
        limits = Limits(per_second=per_second)
        async with Caller(shared.open(limits)) as one, Caller(shared.open(limits)) as other:
            assert await one.call() and await other.call()
            began = time.monotonic()
            one.gate.cool_down(0.7)
            async with Caller(shared.open(limits)) as late:
                await wait_until(lambda: late.gate.statistics().cool_downs == 1, 0.6)
                assert await late.call() and await one.call()
                assert min(late.begun[-1], one.begun[-1]) - began >= 0.69

    run(test())


def test_other_limits_under_one_name_are_refused(server: RedisServer) -> None:
    async def test() -> None:
        shared = RedisCoordinator(server.url, "differ")
        async with Caller(shared.open(Limits(per_second=5.0))) as first:
            assert await first.call()
            async with Caller(shared.open(Limits(per_second=6.0))) as second:
                with pytest.raises(CoordinatorError, match="others have 5.0") as caught:
                    await second.call()
                assert PASSWORD not in str(caught.value)

    run(test())


@pytest.mark.slow
@pytest.mark.contract(needs="Redis, which outlives the task")
def test_what_a_task_held_that_died_counts_as_used(server: RedisServer) -> None:
    shared = RedisCoordinator(server.url, "killed")
    limits = Limits(max_calls=60, per_second=30.0, burst=0.25)
    program = calling.start(shared, limits, 60.0)
    assert program.stdout is not None
    lines = [program.stdout.readline() for _ in range(20)]
    program.kill()
    lines += program.stdout.readlines()
    program.wait()
    program.stdout.close()
    them = run(all_call(shared, limits, 2))
    begun = len(lines) + sum(len(caller.begun) for caller in them)
    assert 50 <= begun <= 60
    assert {caller.gate.exhausted for caller in them} == {"max_calls=60"}


@pytest.mark.slow
def test_a_redis_that_forgot_everything_is_told_again(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)

    async def test() -> None:
        shared = RedisCoordinator(server.url, "forgot")
        limits = Limits(max_calls=40)
        async with Caller(shared.open(limits)) as one, Caller(shared.open(limits)) as other:
            assert await one.calls(number=10) == 10 and await other.calls(number=10) == 10
            # What was held ahead has lapsed.
            await wait_until(lambda: one.gate._calls == other.gate._calls == 0)  # type: ignore[attr-defined]
            await asyncio.to_thread(server.kill)
            waiting = asyncio.create_task(one.calls())
            await wait_until(lambda: not one.gate.connected)  # type: ignore[attr-defined]
            await asyncio.to_thread(server.start)
            one_more = await other.calls()
            assert await waiting + one_more == 20

    try:
        run(test())
    finally:
        server.kill()


def test_a_job_that_waits_longer_than_its_patience_fails_and_shows_no_password() -> None:
    async def test() -> None:
        shared = RedisCoordinator(f"redis://:{PASSWORD}@127.0.0.1:1/0", "n", patience=0.3)
        async with Caller(shared.open(Limits(max_calls=1))) as caller:
            with pytest.raises(
                CoordinatorError, match="no Redis for patience=0.3 s: <limits 'n' in Redis"
            ) as caught:
                await caller.call()
            assert PASSWORD not in str(caught.value)

    run(test())


@pytest.mark.contract(
    "A wrong password of a Redis is said and not shown.", needs="Redis, which refuses the password"
)
def test_a_wrong_password_is_said_and_not_shown(server: RedisServer) -> None:
    async def test() -> None:
        url = server.url.replace(PASSWORD, "battery-staple")
        async with Caller(RedisCoordinator(url, patience=0.3).open(Limits(max_calls=1))) as caller:
            with pytest.raises(CoordinatorError, match="password") as caught:
                await caller.call()
            assert "battery-staple" not in str(caught.value)

    run(test())


def test_what_is_kept_expires(server: RedisServer) -> None:
    shared = RedisCoordinator(server.url, "short", keep=0.2)
    assert run(all_call(shared, Limits(max_calls=3), 1))[0].gate.statistics().granted == 3

    async def gone() -> None:
        await wait_until(lambda: server.command("KEYS", "*") == [])

    run(gone())


def test_open_gate_takes_a_redis_and_leaves_no_task(server: RedisServer) -> None:
    async def test() -> None:
        before = asyncio.all_tasks()
        gate = open_limiter(Rate(1000.0), 5, None, RedisCoordinator(server.url, "open"))
        assert gate is not None
        async with Caller(gate) as caller:
            assert await caller.calls() == 5
        await gate.close()
        assert asyncio.all_tasks() == before

    run(test())


def test_patience_begins_when_a_call_waits_and_not_when_redis_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_limits, "MAX_PAUSE_S", 0.05)
    server = RedisServer(tmp_path)

    async def test() -> None:
        shared = RedisCoordinator(server.url, "g", patience=1.0)
        async with Caller(shared.open(Limits(max_calls=100))) as caller:
            assert await caller.call()
            # What it holds lapses, and then longer than its patience, which nobody needs.
            server.kill()
            gone = time.monotonic()
            await wait_until(lambda: time.monotonic() - gone > 1.8)
            asked = time.monotonic()
            with pytest.raises(CoordinatorError, match="no Redis for patience=1 s"):
                await caller.call()
            assert time.monotonic() - asked >= 0.99

    try:
        run(test())
    finally:
        server.kill()
