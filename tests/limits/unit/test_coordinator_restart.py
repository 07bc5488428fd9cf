"""A coordinator that ends and begins again: nothing is counted twice, nothing is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Coordinator
from pillarbox.aio.limits import coordinator as coordinator_module
from pillarbox.aio.limits.coordinator import CoordinatorHandle, LimitService
from pillarbox.aio.limits.lease import LeasedLimiter
from pillarbox.aio.limits.messages import SERVICE
from pillarbox.aio.limits.rate import CoordinatorError, Limits
from pillarbox.rpc.connection import RpcHandle
from pillarbox.rpc.server import RpcServer
from tests.limits.unit import calling, coordinating
from tests.limits.unit.calling import Caller, impatient, most_in
from tests.limits.unit.coordinating import Hasty
from tests.limits.unit.virtual_coordinator import VirtualCoordinator, limiter
from tests.rpc.unit.virtual_network import on_net
from tests.waiting import until, wait_until


def curt(shared: CoordinatorHandle, limits: Limits) -> LeasedLimiter:
    """A limiter that does not wait long for its farewell to be heard."""
    assert shared.name is not None
    return LeasedLimiter(shared.handle, shared.name, limits, shared.patience, leave_timeout_s=0.1)


@contextlib.contextmanager
def coordinator_process(state: Path) -> Iterator[CoordinatorHandle]:
    program, handle = coordinating.start(state)
    try:
        yield handle
    finally:
        coordinating.kill(program)


async def in_turns(tasks: list[Caller], number: int) -> int:
    """Calls by all in parallel until so many have begun in all, or no more may."""
    begun = 0

    async def one(caller: Caller) -> None:
        nonlocal begun
        while begun < number and await caller.call():
            begun += 1
            await asyncio.sleep(0.001)

    await asyncio.gather(*(one(caller) for caller in tasks))
    return begun


@pytest.mark.contract(
    "A coordinator that is killed and started again lets exactly the rest of the calls begin."
)
def test_killed_and_started_again_it_lets_exactly_the_rest_begin(tmp_path: Path) -> None:
    limits = Limits(max_calls=400, max_cost=1e9)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            with coordinator_process(tmp_path / "state") as handle:
                shared = handle.named("g")
                tasks = [await stack.enter_async_context(Caller(shared.open(limits))) for _ in range(4)]
                assert await in_turns(tasks, 150) >= 150
            for task in tasks:
                task.gate.spend(2.0)
            with coordinator_process(tmp_path / "state") as again:
                assert again.handle.addresses == handle.handle.addresses
                await in_turns(tasks, 10**9)
                assert sum(len(task.begun) for task in tasks) == 400
                assert {task.gate.exhausted for task in tasks} == {"max_calls=400"}
                await asyncio.gather(*(task.gate.close() for task in tasks))
            # The cost that was reported while nobody listened is known too.
            state = json.loads((tmp_path / "state").read_text())
            assert state["gates"]["g"]["sums"] == [400, 400, 8.0]

    asyncio.run(run())


def test_a_task_that_dies_while_it_is_away_may_have_begun_all_that_it_held(tmp_path: Path) -> None:
    limits = Limits(max_calls=300)
    with coordinator_process(tmp_path / "state") as handle:
        shared = handle.named("g")
        program = calling.start(shared, limits._replace(per_second=40.0))
        assert program.stdout is not None
        lines = [program.stdout.readline() for _ in range(20)]
    program.kill()
    lines += program.stdout.readlines()
    program.wait()
    program.stdout.close()

    async def rest(coordinator: Coordinator) -> int:
        async with Caller(coordinator.named("g").open(limits._replace(per_second=40.0))) as caller:
            assert await caller.call()
            await until(lambda: coordinator.statistics()["g"].clients == 1)
            return len(caller.begun)

    # Faster than waiting for all calls: the sums say what may still begin.
    with Hasty(state=tmp_path / "state") as coordinator:
        begun = len(lines) + asyncio.run(rest(coordinator))
        wait_until(lambda: coordinator.statistics()["g"].held == 0)
        calls = coordinator.statistics()["g"].calls
    assert begun <= calls <= begun + 20


def test_stopped_and_started_in_one_process_it_goes_on() -> None:
    limits = Limits(max_calls=60)

    async def run() -> None:
        coordinator = Hasty().start()
        try:
            address = coordinator.address
            gates = [coordinator.named("g").open(limits) for _ in range(2)]
            async with Caller(gates[0]) as one, Caller(gates[1]) as other:
                assert await in_turns([one, other], 30) >= 30
                await asyncio.to_thread(coordinator.close)
                await asyncio.to_thread(coordinator.start)
                assert coordinator.address == address
                await in_turns([one, other], 10**9)
                assert len(one.begun) + len(other.begun) == 60
        finally:
            await asyncio.to_thread(coordinator.close)

    asyncio.run(run())


@pytest.mark.contract
def test_a_coordinator_that_has_stopped_writes_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, path, pending = bytes(32), tmp_path / "state", set[asyncio.TimerHandle]()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later
        service = LimitService(secret, path, None)
        server = RpcServer(SERVICE, service)
        server._secret = secret

        def noted(seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
            def call() -> None:
                pending.discard(handle)
                callback(*args)

            handle = call_later(seconds, call)
            if getattr(callback, "__self__", None) is service:
                pending.add(handle)
            return handle

        monkeypatch.setattr(loop, "call_later", noted)
        port = await server._listen()
        shared = CoordinatorHandle(RpcHandle((("127.0.0.1", port),), secret, SERVICE), "g", 60.0)
        limits = Limits(max_calls=60)
        async with Caller(curt(shared, limits)) as one, Caller(curt(shared, limits)) as other:
            assert await in_turns([one, other], 10) >= 10
            await server._stop()
            assert service.is_written
            assert json.loads(path.read_text()) == service.state()
            assert not [handle for handle in pending if not handle.cancelled()]

    asyncio.run(run())


@pytest.mark.contract
def test_a_restart_gives_no_second_burst() -> None:
    limits = Limits(per_second=100.0, burst=5.0)

    async def run() -> tuple[list[float], float]:
        tasks = [Caller(limiter(limits, leave_timeout_s=0.1)) for _ in range(3)]
        async with contextlib.AsyncExitStack() as stack:
            async with VirtualCoordinator() as first:
                for task in tasks:
                    await stack.enter_async_context(task)
                # All that may be granted at once.
                await asyncio.gather(*(task.calls(number=160) for task in tasks))
                state = first.service.state()
            restarted = asyncio.get_running_loop().time()
            async with VirtualCoordinator(json.loads(json.dumps(state))):
                await asyncio.gather(*(task.calls(seconds=0.7) for task in tasks))
        return sorted(at for task in tasks for at in task.begun), restarted

    begun, restarted = on_net(run)
    for window in (0.25, 0.5, begun[-1] - begun[0]):
        assert most_in(begun, window) <= 100 * (5.0 + window) + 1
    assert begun[-1] > restarted


def test_a_cool_down_outlives_the_coordinator_in_the_tasks() -> None:
    async def run() -> None:
        limits = Limits(per_second=1000.0)
        async with contextlib.AsyncExitStack() as stack:
            async with VirtualCoordinator() as first:
                one = await stack.enter_async_context(Caller(limiter(limits, leave_timeout_s=0.1)))
                assert await one.call()
                state = first.service.state()
            one.gate.cool_down(60.0)
            cool_until = asyncio.get_running_loop().time() + 60.0
            async with VirtualCoordinator(state):
                late = await stack.enter_async_context(Caller(limiter(limits, leave_timeout_s=0.1)))
                # By then the first one is there again.
                await asyncio.sleep(10.0)
                assert late.gate.statistics().cool_downs == 1
                assert await late.call()
                assert cool_until <= late.begun[0] <= cool_until + 0.01

    on_net(run)


@pytest.mark.contract("A job whose coordinator is away for longer than its patience fails and says why.")
def test_a_job_that_waits_longer_than_its_patience_fails_and_says_why() -> None:
    async def run() -> None:
        coordinator = Hasty(patience=40.0).start()
        address = "{}:{}".format(*coordinator.address)
        async with Caller(impatient(coordinator.named().open(Limits(max_calls=100)))) as caller:
            assert await caller.call()
            await asyncio.to_thread(coordinator.close)
            with pytest.raises(CoordinatorError, match=re.escape("patience=40 s at " + address)) as caught:
                await caller.calls()
            assert coordinator._secret.hex() not in str(caught.value)
            assert repr(coordinator._secret) not in str(caught.value)

    asyncio.run(run())


def test_a_short_absence_is_waited_for() -> None:
    async def run() -> None:
        coordinator = Hasty(patience=30.0).start()
        try:
            async with Caller(coordinator.named().open(Limits(per_second=50.0, burst=0.1))) as caller:
                assert await caller.call()
                await asyncio.to_thread(coordinator.close)
                calls = asyncio.create_task(caller.calls(number=20))
                await until(lambda: caller.gate._demand.held_back_at is not None)  # type: ignore[attr-defined]
                await asyncio.to_thread(coordinator.start)
                assert await calls == 20
        finally:
            await asyncio.to_thread(coordinator.close)

    asyncio.run(run())


def test_the_state_file_is_for_its_owner_alone_and_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state"
    before = os.umask(0)
    try:
        with Hasty(state=path) as coordinator:
            address = coordinator.address
            assert path.stat().st_mode & 0o777 == 0o600
            assert json.loads(path.read_text())["port"] == address[1]
    finally:
        os.umask(before)
    assert [each.name for each in tmp_path.iterdir()] == ["state"]
    with Hasty(state=path) as coordinator:
        assert coordinator.address == address
    path.chmod(0o644)
    with pytest.raises(PermissionError, match="others may read it"):
        Coordinator(state=path).start()
    path.chmod(0o600)
    path.write_text("{")
    with pytest.raises(ValueError, match="not the state of a coordinator"):
        Coordinator(state=path).start()


@pytest.mark.contract("A coordinator takes no state that another user has put in its place.")
def test_a_state_file_that_another_user_has_planted_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "state", tmp_path / "other"
    with Hasty(state=other):
        pass
    path.symlink_to(other)
    with pytest.raises(OSError, match="a symbolic link, which Pillarbox does not make"):
        Coordinator(state=path).start()
    path.unlink()
    other.rename(path)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 12345, -1)
    with pytest.raises(PermissionError, match="belongs to user 12345, and this process is of user 0"):
        Coordinator(state=path).start()


@pytest.mark.contract("A coordinator that is slow to write its state holds up no other server.")
def test_a_state_that_is_slow_to_write_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_state, is_slow, may_end = coordinator_module.write_state, threading.Event(), threading.Event()

    def slow(path: Path, text: str) -> None:
        if path.name == "slow" and '"g"' in text:
            is_slow.set()
            may_end.wait()
        write_state(path, text)

    monkeypatch.setattr(coordinator_module, "write_state", slow)

    async def run(slow: Coordinator, other: Coordinator) -> None:
        async with Caller(slow.named("g").open(Limits(max_calls=5))) as waiting:
            first = asyncio.create_task(waiting.call())
            await until(is_slow.is_set)
            async with Caller(other.named("g").open(Limits(max_calls=5))) as caller:
                assert await caller.calls() == 5
            # It may be told of its calls only when they are written down.
            assert not first.done()
            may_end.set()
            assert await first

    try:
        with Hasty(state=tmp_path / "slow") as slow_one, Hasty() as other:
            asyncio.run(run(slow_one, other))
    finally:
        may_end.set()


def test_patience_begins_when_a_call_waits_and_not_when_the_coordinator_went() -> None:
    async def tried_again(gate: Any) -> None:
        """The gate has looked for its coordinator, and at the time, since now."""
        for _ in range(2):
            trouble = gate._link._way.trouble
            await until(lambda trouble=trouble: gate._link._way.trouble is not trouble)  # type: ignore[misc]

    async def run() -> None:
        coordinator = Hasty(patience=30.0).start()
        try:
            gate: Any = coordinator.named().open(Limits(max_calls=100))
            now = gate._clock()
            gate._clock = gate._link._clock = lambda: now
            async with Caller(gate) as caller:
                assert await caller.call()
                await asyncio.to_thread(coordinator.close)
                await until(lambda: gate._link._way.connection is None)
                # Longer than its patience, which nobody needs.
                now += 40.0
                await tried_again(gate)
                waiting = asyncio.create_task(caller.call())
                await until(lambda: gate._demand.held_back_at is not None)
                now += 20.0
                await tried_again(gate)
                assert not waiting.done()
                await asyncio.to_thread(coordinator.start)
                assert await waiting
        finally:
            await asyncio.to_thread(coordinator.close)

    asyncio.run(run())


def test_what_cannot_be_written_is_not_granted_said_once_and_kept_for_another_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, away = tmp_path / "folder", tmp_path / "away"
    folder.mkdir()
    limits = Limits(max_calls=100)
    coordinator = Hasty(state=folder / "state", patience=30.0).start()

    def said(text: str) -> int:
        return sum(text in message for message in caplog.messages)

    async def run() -> None:
        gate = coordinator.named("g").open(limits)
        async with Caller(gate) as caller:
            assert await caller.call()
            folder.rename(away)
            some = asyncio.create_task(caller.calls(number=50))
            await until(lambda: "its state cannot be written" in str(gate._link._way.trouble))
            assert not some.done()
            assert said("cannot be written, so nothing is granted") == 1
            away.rename(folder)
            assert await some == 50
            assert said("can be written again") == 1
            folder.rename(away)
            others = asyncio.create_task(caller.calls())
            await until(lambda: said("cannot be written, so nothing is granted") == 2)
            await asyncio.to_thread(coordinator.close)
            assert said("the last sums of the coordinator cannot be written") == 1
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*coordinator.address)
            with pytest.raises(FileNotFoundError):
                await asyncio.to_thread(coordinator.start)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*coordinator.address)
            away.rename(folder)
            # The file is older than what this one knows.
            (folder / "state").unlink()
            await asyncio.to_thread(coordinator.start)
            assert await others == 49

    try:
        asyncio.run(run())
    finally:
        coordinator.close()


def test_a_call_waits_no_longer_than_its_patience_for_a_state_that_cannot_be_written(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    async def run(coordinator: Coordinator) -> None:
        text = "its state cannot be written"
        async with Caller(impatient(coordinator.named("g").open(Limits(max_calls=10**6)), text)) as caller:
            assert await caller.call()
            folder.rename(tmp_path / "away")
            with pytest.raises(CoordinatorError, match=f"patience=50 s .*{text}"):
                await caller.calls()

    with Hasty(state=folder / "state", patience=50.0) as coordinator:
        asyncio.run(run(coordinator))
