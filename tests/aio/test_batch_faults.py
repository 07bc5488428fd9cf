"""Batches that fail for a row, for their number of rows, or as all do: what is found, and its price."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Batch, Errors, Retry, Timeout, async_map
from tests.aio.virtual import Job, infos, play
from tests.search import examples

GOES_ON: Any = Errors("column", floor=None)


class Service:
    """Refuses calls with more than `most` rows, with a bad row, or all, `until` that time."""

    def __init__(
        self,
        most: int = 10**9,
        bad: set[int] | None = None,
        error: type[Exception] = ValueError,
        until: float = 0.0,
    ) -> None:
        self.most, self.bad, self.error, self.until = most, bad or set(), error, until
        self.calls: list[list[int]] = []

    async def __call__(self, rows: list[int]) -> list[int]:
        self.calls.append(rows)
        await asyncio.sleep(0.01)
        now = asyncio.get_running_loop().time()
        if len(rows) > self.most or self.bad.intersection(rows) or now < self.until:
            raise self.error(f"cannot take row {rows[0]} and {len(rows)} more")
        return rows


def run(service: Any, rows: int, size: int = 64, **options: Any) -> Job:
    async def script() -> Job:
        job = Job(service, batch=Batch(size), errors=GOES_ON, **{"capacity": 4, **options})
        job.push(*range(rows))
        await job.end()
        return job

    return play(script)


def failed(job: Job) -> set[int]:
    assert len(job.emitted) == len({row for row, _ in job.emitted})
    return {*infos(job)}


@pytest.mark.contract("A fault that all rows meet costs at most three times the calls that they need.")
@pytest.mark.parametrize("retry", [None, Retry(4)], ids=["once", "retried"])
@pytest.mark.parametrize(("rows", "size"), [(640, 64), (2000, 64), (3000, 16), (2000, 8)])
def test_a_fault_of_all_rows_costs_few_calls(rows: int, size: int, retry: Retry | None) -> None:
    service = Service(bad={*range(rows)})
    job = run(service, rows, size, retry=retry)
    assert failed(job) == {*range(rows)}
    assert len(service.calls) <= 3 * rows / size


@pytest.mark.contract("Bad rows cost no more than their halving, wherever they stand.")
@pytest.mark.parametrize("seed", [3, 13, 30, 32])
def test_bad_rows_cost_their_halving_wherever_they_stand(seed: int) -> None:
    chance = random.Random(seed)
    service = Service(bad={chance.randrange(6400) for _ in range(80)})
    job = run(service, 6400, retry=Retry(3, jitter=False), capacity=8)
    assert failed(job) == service.bad
    # Each bad row: a batch of 64 two times more, twelve halves, and two calls more alone.
    assert len(service.calls) <= 100 + len(service.bad) * (2 + 12 + 2)


@pytest.mark.contract("A number of rows that a service does not take is found, and costs a tenth more calls.")
@pytest.mark.parametrize("most", [1, 2, 10, 30])
def test_the_number_of_rows_that_a_service_takes_is_found(most: int, caplog: Any) -> None:
    service = Service(most)
    job = run(service, 3000)
    assert failed(job) == set()
    assert len(service.calls) <= 1.1 * 3000 / most + 12
    assert f"fails with more than {most} rows in a call" in caplog.text
    assert caplog.text.count("rows in a call") == 1


def test_a_service_that_takes_more_rows_again_is_given_them() -> None:
    class Grows(Service):
        async def __call__(self, rows: list[int]) -> list[int]:
            if len(self.calls) == 60:
                self.most = 64
            return await super().__call__(rows)

    service = Grows(10)
    assert failed(run(service, 20_000)) == set()
    assert len(service.calls[-2]) == 64


@pytest.mark.contract("A row that did well alone ends what is believed of all rows.")
def test_rows_that_are_good_after_many_that_are_not_lose_nothing() -> None:
    service = Service(bad={*range(640)})
    job = run(service, 3000)
    assert failed(job) == {*range(640)}


def test_a_fault_that_passes_costs_no_row_of_later_batches() -> None:
    service = Service(until=1.0)
    job = run(service, 20_000, retry=Retry(20, initial=0.1, maximum=0.2, jitter=False))
    assert failed(job) == set()


@pytest.mark.parametrize("share", [10, 20, 50, 100])
def test_a_bad_row_in_most_batches_is_no_fault_of_all(share: int) -> None:
    bad = {*range(7, 6400, share)}
    service = Service(bad=bad)
    assert failed(run(service, 6400, capacity=8)) == bad
    # Half a batch, and its other half, for each level.
    assert len(service.calls) <= 1.1 * (100 + len(bad) * 13)


@settings(deadline=None, max_examples=examples(150))
@given(
    st.integers(1, 200),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sets(st.integers(0, 199), max_size=30),
    st.integers(1, 5),
    st.sampled_from([None, 0.015, 0.05, 0.2]),
    st.sampled_from([None, Retry(2, initial=0.02, jitter=False)]),
    st.booleans(),
)
def test_every_row_gets_its_result_or_its_error_whatever_is_looked_for(
    rows: int,
    size: int,
    most: int,
    bad: set[int],
    capacity: int,
    timeout: float | None,
    retry: Retry | None,
    hangs: bool,
) -> None:
    service = Service(most, bad)

    async def call(given: list[int]) -> list[int]:
        if hangs and len(given) == 1 and given[0] % 3 == 0:
            await asyncio.sleep(10.0)
        return await service(given)

    job = run(call, rows, size, capacity=capacity, timeout=Timeout(timeout), retry=retry)
    assert job.error is None
    assert [row for row, _ in job.emitted] == [*range(rows)]
    if timeout is None:
        assert failed(job) == {row for row in bad if row < rows}


@pytest.mark.contract("A mistake of the program is not tried again.")
@pytest.mark.parametrize(
    "mistake",
    [
        lambda: nowhere,  # type: ignore[name-defined] # noqa: F821
        lambda: __import__("no_module_of_this_name"),
        lambda: None.text,  # type: ignore[attr-defined]
        lambda: asyncio.no_function(),  # type: ignore[attr-defined]
        lambda: (_ for _ in ()).throw(NotImplementedError("later")),
    ],
)
def test_a_mistake_of_the_program_is_called_once(mistake: Any) -> None:
    async def fn(row: int) -> Any:
        return mistake()

    (outcome,) = async_map([1], fn, retry=Retry(5), errors="column")
    assert outcome.error.attempts == 1


@pytest.mark.parametrize(
    "error", [AttributeError("raised by hand"), TypeError("one answer"), KeyError("data")]
)
def test_errors_that_one_answer_may_cause_are_tried_again(error: Exception) -> None:
    async def fn(row: int) -> Any:
        raise error

    (outcome,) = async_map([1], fn, retry=Retry(2, initial=0.001), errors="column")
    assert outcome.error.attempts == 2
    (outcome,) = async_map(
        [1], fn, retry=Retry(2, initial=0.001, on=(NameError, type(error))), errors="column"
    )
    assert outcome.error.attempts == 2
