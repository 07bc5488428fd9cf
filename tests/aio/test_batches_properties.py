"""Batches, for any sizes, weights, arrivals and failures: every row gets its own result or its own error."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from pillarbox import Batch, Buffer, ErrorInfo, Timeout
from tests.aio.virtual import HOUR, Job, Service, again, answers, loop_of, play
from tests.search import examples

FINE, POISON, HANGS, FAILS, FLAKY = "fine", "poison", "hangs", "fails", "flaky"

PAUSE = 1.0
ATTEMPT_TIMEOUT = 30.0
TIMEOUT = 100.0


@dataclass
class Plan:
    """One job: the rows, what each of them does, when they come, and the options."""

    kinds: list[str]
    weights: list[int]
    lots: list[tuple[int, float]]
    size: int
    linger: float
    max_weight: int | None
    capacity: int
    reorder: int
    ordered: bool
    attempts: int
    seconds: float
    limited: bool
    transient: set[int] = field(default_factory=set)

    @property
    def bad(self) -> list[int]:
        """The rows that make a whole batch fail."""
        return [row for row, kind in enumerate(self.kinds) if kind in (POISON, HANGS)]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    rows = draw(st.integers(0, 40))
    rare = st.sampled_from([FINE] * 12 + [POISON, HANGS, FAILS, FLAKY])
    few = st.sampled_from([FINE] * 12 + [FAILS, FLAKY])
    splits = draw(st.booleans())
    kinds = draw(st.lists(rare if splits else few, min_size=rows, max_size=rows))
    capacity = draw(st.integers(1, 4))
    # An error of the service in the last attempt of a half would fail rows that are fine.
    transient = set() if splits else draw(st.sets(st.integers(1, 10), max_size=1))
    return Plan(
        kinds=kinds,
        weights=draw(st.lists(st.integers(0, 12), min_size=rows, max_size=rows)),
        lots=draw(st.lists(st.tuples(st.integers(1, 15), st.sampled_from([0.0, 0.4, 1.1, 6.0])), max_size=8)),
        size=draw(st.integers(1, 16)),
        linger=draw(st.sampled_from([0.0, 1.0, 5.0])),
        max_weight=draw(st.none() | st.integers(1, 40)),
        capacity=capacity,
        reorder=draw(st.integers(capacity, 100)),
        ordered=draw(st.booleans()),
        attempts=draw(st.integers(2, 4)) + len(transient),
        seconds=draw(st.sampled_from([0.0, 0.3, 3.0])),
        limited=draw(st.booleans()),
        transient=transient,
    )


# A row whose whole time is over in the turn of the loop in which its batch was begun.
IN_ONE_TURN = Plan(
    kinds=[FINE] * 21 + [HANGS] + [FINE] * 10 + [HANGS, HANGS] + [FINE] * 5,
    weights=[0] * 39,
    lots=[],
    size=3,
    linger=0.0,
    max_weight=None,
    capacity=2,
    reorder=33,
    ordered=False,
    attempts=2,
    seconds=0.0,
    limited=True,
)


class Planned(Service):
    """A service whose rows do as the plan says."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.seconds)
        self.plan = plan
        self.seen: Counter[int] = Counter()
        self.first: dict[int, float] = {}

    async def answer(self, rows: list[int]) -> list[Any]:
        kinds = [self.plan.kinds[row] for row in rows]
        if HANGS in kinds:
            await asyncio.sleep(HOUR)
        if POISON in kinds:
            raise ValueError("poison")
        return [self.one(row, kind) for row, kind in zip(rows, kinds, strict=True)]

    def one(self, row: int, kind: str) -> Any:
        if kind == FAILS or (kind == FLAKY and self.seen[row] == 1):
            return KeyError(row)
        return ("answer", row)

    async def __call__(self, rows: list[int]) -> list[Any]:
        now = asyncio.get_running_loop().time()
        self.seen.update(rows)
        for row in rows:
            self.first.setdefault(row, now)
        if len(self.calls) + 1 in self.plan.transient:
            self.calls.append((now, rows))
            raise OSError("the service")
        return await super().__call__(rows)


async def play_out(plan: Plan) -> tuple[Job, Planned]:
    service = Planned(plan)
    batch = (
        Batch(plan.size, linger=plan.linger)
        if plan.max_weight is None
        else Batch(plan.size, plan.linger, plan.weights.__getitem__, plan.max_weight)
    )
    job = Job(
        service,
        batch=batch,
        capacity=plan.capacity,
        buffer=Buffer(plan.reorder),
        ordered=plan.ordered,
        errors="column",
        retry=again(plan.attempts, PAUSE),
        timeout=Timeout(TIMEOUT if plan.limited else None, attempt=ATTEMPT_TIMEOUT),
    )
    rows = range(len(plan.kinds))
    at = 0
    for count, pause in plan.lots:
        job.push(*rows[at : at + count])
        at += count
        await asyncio.sleep(pause)
    job.push(*rows[at:])
    await job.end()
    return job, service


@pytest.mark.contract(
    "Whatever the sizes, arrivals and failures of batches, every row gets its own result or its own error.",
    convicts=["gone_rows_of_batch_called"],
)
@settings(deadline=None, max_examples=examples(150))
@given(plans())
def test_every_row_gets_its_own_result_or_its_own_error(plan: Plan) -> None:
    job, service = play(lambda: play_out(plan))
    assert job.error is None
    rows = [*range(len(plan.kinds))]
    fine = {row for row in rows if answers(row)[0] in job.results}
    failed = [row for row in rows if row not in fine]
    errors = [result for result in job.results if type(result) is ErrorInfo]
    assert (len(job.results), len(errors)) == (len(rows), len(failed))
    if plan.ordered:
        assert all(result in (answers(row)[0], *errors) for row, result in job.emitted)
        for row, result in job.emitted:
            if row not in fine:
                assert result.type in may_fail_with(plan, row), (row, plan.kinds[row], result)
        return
    # An error does not say its row: there is one for each row, as they fail, and in time.
    possible = {error for row in failed for error in may_fail_with(plan, row)}
    assert {error.type for error in errors} <= possible
    if not (plan.limited or plan.transient):
        assert Counter(error.type for error in errors) == Counter(EXPECTED[plan.kinds[row]] for row in failed)
    if plan.limited:
        came = zip(job.results, job.came, strict=True)
        late = sorted(at for result, at in came if type(result) is ErrorInfo)
        began = sorted(service.first[row] for row in failed)
        assert all(at <= first + TIMEOUT + 1e-5 for at, first in zip(late, began, strict=True))
        for row in fine:
            at = job.came[job.results.index(answers(row)[0])]
            assert at <= service.first[row] + TIMEOUT + 1e-5


EXPECTED = {POISON: "ValueError", HANGS: "CallTimeout", FAILS: "KeyError"}
"""By what a row does, the error with which it fails."""


def may_fail_with(plan: Plan, row: int) -> set[str]:
    """The errors of a row: its own, its time-out, that of the service in a last attempt that fails too."""
    errors = {EXPECTED[plan.kinds[row]]} if plan.kinds[row] in EXPECTED else set()
    if plan.limited:
        errors.add("CallTimeout")
    if plan.transient and plan.kinds[row] == FAILS:
        errors.add("OSError")
    return errors


@pytest.mark.contract
@settings(deadline=None, max_examples=examples(100))
@given(plans())
@example(IN_ONE_TURN)
def test_no_batch_is_larger_than_allowed_and_no_more_run_than_the_capacity(plan: Plan) -> None:
    job, service = play(lambda: play_out(plan))
    assert service.most <= plan.capacity
    for _, rows in service.calls:
        assert 1 <= len(rows) <= plan.size
        assert len(set(rows)) == len(rows)
        weight = sum(plan.weights[row] for row in rows)
        assert plan.max_weight is None or len(rows) == 1 or weight <= plan.max_weight
    counts = job.statistics()
    assert (counts.in_flight, counts.waiting, counts.abandoned) == (0, 0, 0)
    assert counts.batches == len(service.calls)
    assert counts.calls == sum(len(rows) for _, rows in service.calls)
    assert counts.errors == sum(type(result) is ErrorInfo for result in job.results)


@settings(deadline=None, max_examples=examples(100))
@given(plans())
def test_rows_are_first_called_in_their_order(plan: Plan) -> None:
    _, service = play(lambda: play_out(plan))
    seen: set[int] = set()
    first: list[int] = []
    for _, rows in service.calls:
        fresh = [row for row in rows if row not in seen]
        first += fresh
        # Rows that are tried again come before those that have not been tried.
        assert rows[len(rows) - len(fresh) :] == fresh
        seen.update(rows)
    assert first == sorted(first)


@settings(deadline=None, max_examples=examples(100))
@given(plans())
def test_few_calls_are_made_for_the_sake_of_rows_that_fail(plan: Plan) -> None:
    plan.limited = False
    plan.kinds = [kind if kind in (FINE, POISON, HANGS) else FINE for kind in plan.kinds]
    _, service = play(lambda: play_out(plan))
    seen: set[int] = set()
    more = 0
    for _, rows in service.calls:
        more += seen.issuperset(rows)
        seen.update(rows)
    rounds = math.ceil(math.log2(plan.size))
    # Of its batch, of the halves, and of the row alone.
    most = len(plan.bad) * (2 * (plan.attempts - 1) + 2 * rounds) + len(plan.transient)
    event(f"extra calls: {more > 0}")
    assert more <= most


@pytest.mark.contract
@settings(deadline=None, max_examples=examples(100))
@given(plans())
def test_a_row_that_fails_alone_has_exactly_the_attempts_of_the_policy(plan: Plan) -> None:
    plan.limited = False
    plan.transient = set()
    plan.kinds = [FINE if kind in (POISON, HANGS) else kind for kind in plan.kinds]
    job, service = play(lambda: play_out(plan))
    for row, kind in enumerate(plan.kinds):
        assert service.seen[row] == {FAILS: plan.attempts, FLAKY: 2, FINE: 1}[kind]
    attempts = [result.attempts for result in job.results if type(result) is ErrorInfo]
    assert attempts == [plan.attempts] * plan.kinds.count(FAILS)


@settings(deadline=None, max_examples=examples(100))
@given(plans(), st.floats(0, 60))
def test_a_job_that_is_stopped_at_any_time_leaves_nothing(plan: Plan, when: float) -> None:
    async def script() -> None:
        service = Planned(plan)
        job = Job(
            service,
            batch=Batch(plan.size, linger=plan.linger),
            capacity=plan.capacity,
            errors="column",
            retry=again(plan.attempts, PAUSE),
            timeout=Timeout(TIMEOUT, attempt=ATTEMPT_TIMEOUT),
        )
        job.push(*range(len(plan.kinds)))
        await asyncio.sleep(when)
        calls = len(service.calls)
        await job.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert loop_of().armed_timers == 0
        assert (len(service.calls), service.running) == (calls, 0)

    play(script)
