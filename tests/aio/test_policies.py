"""Policies of calls that a user gives: each moment of a call's life, in jobs and in virtual time."""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pillarbox import (
    Batch,
    CallFailed,
    Dedupe,
    Endpoints,
    Errors,
    Ledger,
    Options,
    Rate,
    Retry,
    Step,
    Timeout,
    async_map,
    current_call,
)
from pillarbox.policies import FINAL, Again, CallPolicy, Found, PolicyServices
from pillarbox.testing import run_virtual
from tests.aio.virtual import Job, now, play


async def plus_one(row: int) -> int:
    return row + 1


class Log(CallPolicy):
    """Notes all moments in a list that its copies share."""

    def __init__(self) -> None:
        self.moments: list[tuple[Any, ...]] = []

    def open(self, services: PolicyServices) -> None:
        self.moments.append(("open",))

    def begin(self, calls: Sequence[Any]) -> None:
        self.moments.append(("begin", *[(call.row, call.attempt) for call in calls]))

    def ended(self, calls: Sequence[Any], error: BaseException | None, seconds: float) -> None:
        self.moments.append(("ended", *[call.row for call in calls], type(error).__name__, seconds))

    def finish(self, call: Any, result: Any) -> None:
        self.moments.append(("finish", call.row, result))

    def statistics(self) -> Mapping[str, float]:
        return {"moments": len(self.moments)}

    def close(self) -> None:
        self.moments.append(("close",))


class Redirect(CallPolicy):
    """Sends each attempt to the next of several endpoints."""

    def __init__(self, *endpoints: str) -> None:
        self.endpoints = endpoints

    def choose(self, calls: Sequence[Any]) -> str:
        return self.endpoints[(calls[0].attempt - 1) % len(self.endpoints)]


@pytest.mark.contract("A policy sees each attempt begin and end, and each row leave, in this order.")
def test_a_policy_that_logs_sees_the_life_of_each_call() -> None:
    failed: set[int] = set()

    async def once(row: int) -> int:
        await asyncio.sleep(2.0)
        if row == 1 and not failed:
            failed.add(row)
            raise OSError("away")
        return row * 10

    async def script() -> None:
        log = Log()
        retry = Retry(2, initial=1.0, jitter=False)
        job = Job(once, capacity=1, retry=retry, policies=[log])
        job.push(0, 1)
        await job.end()
        assert job.results == [0, 10]
        assert job.statistics().policies == {"moments": len(log.moments)}
        assert [tuple(pytest.approx(each) for each in moment) for moment in log.moments] == [
            ("open",),
            ("begin", (0, 1)),
            ("finish", 0, 0),
            ("ended", 0, "NoneType", 2.0),
            ("begin", (1, 1)),
            ("ended", 1, "OSError", 2.0),
            ("begin", (1, 2)),
            ("finish", 1, 10),
            ("ended", 1, "NoneType", 2.0),
            ("close",),
        ]

    play(script)


@pytest.mark.contract("The function finds the endpoint that a policy has chosen for its attempt.")
@pytest.mark.parametrize("batch", [None, Batch(4)])
def test_a_policy_that_redirects_sends_the_next_attempt_elsewhere(batch: Batch | None) -> None:
    seen: list[str] = []

    async def call(rows: Any) -> Any:
        seen.append(current_call().endpoint)
        if current_call().endpoint == "first":
            raise ConnectionResetError
        return rows

    results = async_map(
        [1],
        call,
        options=Options(policies=[Redirect("first", "second")]),
        retry=Retry(2, initial=0.0),
        batch=batch,
    )
    assert list(results) == [1]
    assert seen == ["first", "second"]


def test_without_a_policy_that_chooses_there_is_no_endpoint() -> None:
    async def call(row: int) -> Any:
        return current_call().endpoint

    assert list(async_map([1], call)) == [None]


@pytest.mark.contract("A row that a policy answers is not called.")
@pytest.mark.parametrize("more", [{}, {"dedupe": Dedupe()}], ids=["alone", "dedupe"])
def test_a_row_that_a_policy_answers_is_not_called(more: dict[str, Any]) -> None:
    class Known(CallPolicy):
        def admit(self, call: Any) -> Found | None:
            return Found("known") if call.row % 2 else None

    called: list[int] = []

    async def call(row: int) -> int:
        called.append(row)
        return row

    assert list(async_map(range(4), call, options=Options(policies=[Known()], **more))) == [
        0,
        "known",
        2,
        "known",
    ]
    assert sorted(called) == [0, 2]


@pytest.mark.contract("No attempt begins before the time that a policy names.")
@pytest.mark.parametrize("rate", [None, Rate(1e6)], ids=["alone", "with a rate"])
def test_no_attempt_begins_before_the_time_that_a_policy_names(rate: Rate | None) -> None:
    begun: list[float] = []

    class Every(CallPolicy):
        def open(self, services: PolicyServices) -> None:
            self.clock, self.next = services.clock, 0.0

        def may_begin(self, calls: Sequence[Any]) -> float:
            return max(0.0, self.next - self.clock())

        def begin(self, calls: Sequence[Any]) -> None:
            self.next = self.clock() + 5.0

    async def call(row: int) -> int:
        begun.append(now())
        return row

    async def script() -> None:
        job = Job(call, policies=[Every()], rate=rate)
        job.push(0, 1, 2)
        await job.end()
        assert job.results == [0, 1, 2]
        assert begun == pytest.approx([0.0, 5.0, 10.0], abs=0.1)

    play(script)


def test_a_policy_that_waits_without_end_is_asked_again_when_it_says_so() -> None:
    class Door(CallPolicy):
        def open(self, services: PolicyServices) -> None:
            self.is_open, self.wake = False, services.wake
            services.loop.call_later(7.0, self.opens)

        def opens(self) -> None:
            self.is_open = True
            self.wake()

        def may_begin(self, calls: Sequence[Any]) -> float:
            return 0.0 if self.is_open else math.inf

    async def script() -> None:
        job = Job(plus_one, policies=[Door()])
        job.push(1)
        await job.end()
        assert (job.results, job.came) == ([2], [7.0])

    play(script)


@pytest.mark.contract("A result that a policy refuses is asked for again, as the retry says.")
def test_a_result_that_a_policy_refuses_is_asked_for_again() -> None:
    class NoZero(CallPolicy):
        def accept(self, call: Any, result: int) -> int:
            if not result:
                raise ValueError("zero")
            return result * 100

    answers = iter([0, 1])

    async def call(row: int) -> int:
        return next(answers)

    policies = Options(policies=[NoZero()])
    assert list(async_map([5], call, options=policies, retry=Retry(2, initial=0.0))) == [100]
    answers = iter([0, 1])
    with pytest.raises(CallFailed, match="zero"):
        list(async_map([5], call, options=policies))


@pytest.mark.contract("A policy decides about another attempt before the retry does.")
def test_a_policy_decides_about_another_attempt_before_the_retry() -> None:
    class Patience(CallPolicy):
        def again(self, calls: Sequence[Any], error: BaseException) -> Again | None:
            if isinstance(error, KeyError):
                return FINAL
            return Again(3.0, "repeat") if calls[0].attempt < 4 else None

    attempts: list[float] = []

    async def fails(row: BaseException) -> int:
        attempts.append(now())
        raise row

    async def script() -> None:
        job = Job(fails, policies=[Patience()], retry=2, errors=Errors("column"))
        job.push(ValueError("again"))
        await job.end()
        # Three of its own, none of which is charged, and the two of the retry.
        assert attempts[:4] == [0.0, 3.0, 6.0, 9.0] and len(attempts) == 5
        attempts.clear()
        job = Job(fails, policies=[Patience()], retry=5, errors=Errors("column"))
        job.push(KeyError("final"))
        await job.end()
        assert len(attempts) == 1

    play(script)


@pytest.mark.parametrize("moment", ["admit", "may_begin", "choose", "begin", "again"])
@pytest.mark.parametrize("batch", [None, Batch(1)], ids=["rows", "batches"])
def test_what_a_moment_raises_fails_the_rows_of_its_calls(moment: str, batch: Batch | None) -> None:
    class Broken(CallPolicy):
        pass

    def broken(self: Any, calls: Any, *_: Any) -> Any:
        row = calls.row if moment == "admit" else calls[0].row
        if row == 1:
            raise RuntimeError("broken policy")
        return None if moment != "may_begin" else 0.0

    setattr(Broken, moment, broken)

    async def call(row: Any) -> Any:
        if moment == "again":
            raise OSError
        return row

    options = Options(policies=[Broken()], batch=batch, errors="column", capacity=1)
    outcomes = list(async_map([0, 1, 2], call, options=options))
    messages = [outcome.error and outcome.error.message for outcome in outcomes]
    assert "broken policy" in str(messages[1])
    assert "broken policy" not in str((messages[0], messages[2]))


@pytest.mark.contract(
    "A policy finds no error in a row that has succeeded, whatever its attempts before.",
    convicts=["answered_row_keeps_its_error"],
)
def test_a_row_that_succeeds_in_the_end_has_no_error_when_it_finishes() -> None:
    class Errors(CallPolicy):
        def finish(self, call: Any, result: Any) -> None:
            errors.append(call.error)

    errors: list[BaseException | None] = []
    attempts = iter([OSError("away"), None])

    async def fn(row: int) -> int:
        if (error := next(attempts)) is not None:
            raise error
        return row

    async def script() -> None:
        job = Job(fn, policies=[Errors()], retry=Retry(2, initial=0.0))
        job.push(7)
        await job.end()
        assert (job.results, errors) == ([7], [None])

    play(script)


@pytest.mark.contract(
    "A row that a policy has failed at its begin is not timed out later.",
    convicts=["failed_begin_is_timed_out"],
)
def test_a_row_that_a_policy_fails_at_its_begin_meets_no_limit_of_time() -> None:
    class Refuses(CallPolicy):
        def begin(self, calls: Sequence[Any]) -> None:
            if calls[0].row == 0:
                raise ValueError("not this one")

    async def takes_four_seconds(row: int) -> int:
        await asyncio.sleep(4.0)
        return row

    async def script() -> None:
        options = {"timeout": Timeout(attempt=5.0), "errors": "column", "capacity": 1}
        job = Job(takes_four_seconds, policies=[Refuses()], **options)
        job.push(*range(4))
        await job.end()
        assert job.results[0].message == "not this one" and job.results[1:] == [1, 2, 3]
        assert job.statistics().timeouts == 0

    play(script)


class Opinion(CallPolicy):
    """Answers row 1, and refuses row 2."""

    def admit(self, call: Any) -> Found | None:
        if call.row == 2:
            raise ValueError("not this one")
        return Found(100) if call.row == 1 else None


@pytest.mark.contract("With a ledger a policy answers and refuses rows as without one.")
@pytest.mark.parametrize("dedupe", [None, Dedupe(), Dedupe(across_tasks=True)])
def test_a_policy_answers_and_refuses_rows_in_front_of_a_ledger(
    tmp_path: Path, dedupe: Dedupe | None
) -> None:
    def ledger(uid: str) -> Ledger:
        return Ledger(tmp_path, uid=uid, run="r")

    chosen = Options(policies=[Opinion()], ledger=ledger("first"), errors=Errors("column"), dedupe=dedupe)
    for _ in range(2):
        found = list(async_map([0, 1, 2, 3], plus_one, options=chosen))
        assert [each.result for each in found] == [1, 100, None, 4]
    steps = [
        Step(plus_one, options=Options(policies=[Opinion()], ledger=ledger("front"))),
        Step(plus_one, ledger=ledger("behind")),
    ]
    assert list(async_map([0, 1, 3], steps)) == [2, 101, 5]


def test_a_policy_may_ask_for_counts_while_it_is_opened() -> None:
    seen: list[tuple[int, ...]] = []

    class Counts(CallPolicy):
        def open(self, services: PolicyServices) -> None:
            seen.append((services.finished(), services.begun(), services.limit() > 0))

    assert list(async_map([1], plus_one, options=Options(policies=[Counts()]))) == [2]
    assert seen == [(0, 0, True)]


@pytest.mark.contract("No moment of a policy follows its close, also where calls end behind a failure.")
@pytest.mark.parametrize("error", [ConnectionError("late"), OSError(errno.EMFILE, "Too many open files")])
def test_no_moment_follows_the_close_of_a_policy(error: Exception) -> None:
    log = Log()

    async def ends_late(row: int) -> int:
        if row == 1:
            raise ValueError("the job fails")
        # In the turn of the failure.
        if row == 2:
            raise error
        return row

    async def main() -> None:
        options = Options(policies=[log], capacity=3)
        with pytest.raises(CallFailed):
            async for _ in async_map([1, 2, 3], ends_late, options=options):
                pass

    run_virtual(main())
    assert ("close",) in log.moments
    assert log.moments[-1] == ("close",)


@pytest.mark.contract("Each operator has its own copy of a policy.")
def test_each_operator_has_a_copy_of_its_own() -> None:
    opened: list[CallPolicy] = []

    class Counting(CallPolicy):
        def open(self, services: PolicyServices) -> None:
            opened.append(self)

    options = Options(policies=[Counting()])
    for _ in range(2):
        assert list(async_map([1], plus_one, options=options)) == [2]
    assert len({id(policy) for policy in (*opened, *options.policies)}) == 3


def test_a_policy_that_raises_while_it_is_closed_is_logged_and_keeps_no_other_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(CallPolicy):
        def close(self) -> None:
            raise OSError("stuck")

    log = Log()
    assert list(async_map([1], plus_one, options=Options(policies=[Stuck(), log]))) == [2]
    assert log.moments[-1] == ("close",)
    assert "Stuck raised while it was closed" in caplog.text


@pytest.mark.parametrize("policies", [CallPolicy(), [print], "log", None, [CallPolicy]])
def test_what_is_no_policy_is_refused_with_what_to_do(policies: Any) -> None:
    with pytest.raises(TypeError, match=r"^policies=.*derived from pillarbox.policies.CallPolicy"):
        Options(policies=policies)


@pytest.mark.contract(convicts=["brought_policy_is_in_front"])
def test_a_policy_of_the_user_chooses_before_the_endpoints_of_an_option() -> None:
    class Mine(CallPolicy):
        def choose(self, calls: Sequence[Any]) -> str | None:
            return "mine" if calls[0].row else None

    async def where(row: int) -> Any:
        endpoint = current_call().endpoint
        return getattr(endpoint, "url", endpoint)

    options = Options(endpoints=Endpoints("http://one"), policies=[Mine()])
    assert list(async_map([0, 1], where, options=options)) == ["http://one", "mine"]


@pytest.mark.contract(convicts=["brought_policy_out_of_place"])
def test_a_row_that_one_endpoint_refuses_goes_to_another_one_before_an_outage_is_waited_for() -> None:
    tried: list[str] = []

    class Full(Exception):
        status = 503

    async def where(row: int) -> Any:
        tried.append(current_call().endpoint.url)
        if len(tried) == 1:
            raise Full
        return tried[-1]

    service = Endpoints(["http://one", "http://two"], choose="in-order")
    options = Options(endpoints=service, retry=Retry(2, initial=3600.0))

    async def main() -> list[Any]:
        return [result async for result in async_map([0], where, options=options)]

    async def timed() -> tuple[list[Any], float]:
        begun = now()
        return await main(), now() - begun

    assert run_virtual(timed()) == (["http://two"], 0.0)
