"""Batches: rows that fail alone, and batches that fail whole. Time is virtual."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import Batch, CallFailed, ErrorInfo, Retry
from pillarbox.wire import is_permanent
from tests.aio.virtual import HOUR, Job, Scripted, again, answers, infos, now, play, poison


@pytest.mark.contract
def test_an_exception_among_the_results_fails_its_row_alone() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        return [KeyError(row) if row == 2 else ("answer", row) for row in rows]

    async def script() -> None:
        service = Scripted(reply)
        job = Job(service, batch=Batch(4), errors="column")
        job.push(1, 2, 3, 4)
        await job.end()
        assert service.batches == [[1, 2, 3, 4]]
        assert [job.results[at] for at in (0, 2, 3)] == answers(1, 3, 4)
        assert (infos(job)[2].type, infos(job)[2].attempts) == ("KeyError", 1)

    play(script)


def test_a_row_that_failed_alone_is_tried_again_by_the_policy_in_the_next_batch() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        return [KeyError(row) if row == 2 and number < 3 else ("answer", row) for row in rows]

    async def script() -> None:
        service = Scripted(reply)
        job = Job(service, batch=Batch(3, linger=1), retry=again(3, 10))
        job.push(1, 2, 3)
        await asyncio.sleep(9.5)
        job.push(4)
        await job.end()
        # Row 4 waits for row 2, which is to come; then no other can come.
        assert service.calls == [(0, [1, 2, 3]), (10, [2, 4]), (20, [2])]
        assert job.results == answers(1, 2, 3, 4)
        counts = job.statistics()
        assert (counts.retries, counts.retries_by_reason, counts.errors) == (2, {"KeyError": 2}, 0)
        # Rows in calls: 3, 2 and 1; each is an attempt.
        assert (counts.calls, counts.batches) == (6, 3)

    play(script)


def test_a_cancellation_among_the_results_of_gather_fails_its_row_alone() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        return [asyncio.CancelledError() if row == 2 else row for row in rows]

    async def script() -> None:
        job = Job(Scripted(reply), batch=Batch(4), errors="column")
        job.push(1, 2, 3)
        await job.end()
        assert (job.results[0], job.results[2]) == (1, 3)
        assert infos(job)[2].type == "CancelledError"

    play(script)


def test_a_batch_that_failed_is_called_again_whole_after_one_pause_that_holds_no_slot() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if number == 1:
            raise ConnectionError("reset")
        return answers(*rows)

    async def script() -> None:
        service = Scripted(reply, seconds=1)
        job = Job(service, capacity=1, batch=Batch(2, linger=HOUR), retry=again(3, 10))
        job.push(1, 2, 3, 4)
        await job.end()
        assert service.calls == [(0, [1, 2]), (1, [3, 4]), (11, [1, 2])]
        assert job.results == answers(1, 2, 3, 4)

    play(script)


def test_a_batch_that_comes_back_goes_before_rows_that_have_not_been_tried() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if number == 1:
            raise ConnectionError("reset")
        return answers(*rows)

    async def script() -> None:
        service = Scripted(reply, seconds=10)
        job = Job(service, capacity=1, batch=Batch(2, linger=HOUR), retry=again(3, 5))
        job.push(*range(8))
        await job.end()
        assert service.batches == [[0, 1], [2, 3], [0, 1], [4, 5], [6, 7]]

    play(script)


def test_batches_that_come_back_are_called_in_the_order_in_which_they_do() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if number <= 2:
            raise ConnectionError("reset")
        return answers(*rows)

    async def script() -> None:
        service = Scripted(reply, seconds=10)
        job = Job(service, capacity=1, batch=Batch(1), retry=again(3, 11))
        job.push(*range(5))
        await job.end()
        # 0 is ready again at 21 and 1 at 31, while 2 and 3 have the slot until 30 and 40.
        assert service.batches == [[0], [1], [2], [0], [1], [3], [4]]
        service = Scripted(reply, seconds=1)
        job = Job(service, capacity=2, batch=Batch(1), retry=again(3, 0.5))
        job.push(0)
        await asyncio.sleep(0.1)
        job.push(1)
        await asyncio.sleep(1.2)
        # The two come back at 1.5 and 1.6, when both slots have been taken.
        job.push(2, 3)
        await job.end()
        assert service.batches == [[0], [1], [2], [3], [0], [1]]

    play(script)


@pytest.mark.contract
@pytest.mark.parametrize("size", [2, 7, 64])
def test_only_the_poison_row_fails_after_few_more_rounds(size: int) -> None:
    async def script() -> None:
        for bad in {0, size // 2, size - 1}:
            service = Scripted(poison(bad), seconds=1)
            job = Job(
                service, batch=Batch(size, linger=HOUR), errors="column", retry=again(3, 10, on=OSError)
            )
            job.push(*range(size))
            begun = now()
            await job.end()
            assert [*infos(job)] == [bad]
            assert [result for result in job.results if type(result) is not ErrorInfo] == answers(
                *[row for row in range(size) if row != bad]
            )
            rounds = math.ceil(math.log2(size))
            assert len(service.calls) <= 1 + 2 * rounds
            # The halves are called at once and together, each round takes a second.
            assert now() - begun <= 1 + rounds + 0.1
            assert service.calls[0][1] == [*range(size)]

    play(script)


@pytest.mark.contract(convicts=["parts_of_batch_charged"])
def test_a_part_is_called_once_and_a_row_alone_has_its_attempts() -> None:
    async def script() -> None:
        service = Scripted(poison(3))
        job = Job(service, batch=Batch(4, linger=HOUR), errors="column", retry=again(2, 1))
        job.push(0, 1, 2, 3)
        await job.end()
        assert service.batches == [[0, 1, 2, 3]] * 2 + [[0, 1], [2, 3], [2], [3], [3]]
        assert infos(job)[3].attempts == 5
        assert job.statistics().batches == 7
        assert infos(job)[3].message == "bad row 3"
        service = Scripted(poison(3, error=TypeError))
        # Not to be tried again, so split at once; a half that meets another error has its attempts.
        job = Job(service, batch=Batch(4, linger=HOUR), errors="column", retry=again(9, 1, on=OSError))
        job.push(0, 1, 2, 3)
        await job.end()
        assert service.batches == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]
        assert infos(job)[3].attempts == 3

    play(script)


class Passing(Exception):
    """An answer of a service that has a bad moment."""

    def __init__(self, status: int) -> None:
        self.status = status


@pytest.mark.contract("A poison row takes no other row with it, also where errors that pass come between.")
@pytest.mark.parametrize("status", [500, 502, 503])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_poison_row_takes_no_other_with_it_among_errors_that_pass(status: int, seed: int) -> None:
    bad = {*range(50, 6400, 100)}
    chance = random.Random(seed)

    async def service(rows: list[int]) -> list[Any]:
        await asyncio.sleep(0.01)
        if chance.random() < 0.02:
            raise Passing(status)
        if bad.intersection(rows):
            raise ValueError("poison")
        return answers(*rows)

    async def script() -> Job:
        job = Job(service, batch=Batch(64), retry=Retry(3), capacity=8, errors="column", ordered=False)
        job.push(*range(6400))
        await job.end()
        return job

    job = play(script)
    fine = [result for result in job.results if type(result) is not ErrorInfo]
    assert sorted(fine) == answers(*sorted({*range(6400)} - bad))
    assert len(job.results) == 6400
    # Each poison row: a batch of 64 three times, twelve halves, two calls more alone; and what passes.
    assert job.statistics().batches <= 1.1 * (100 + len(bad) * (2 + 12 + 2))


@pytest.mark.contract(convicts=["each_attempt_of_batch_is_the_first"])
def test_a_row_alone_has_the_attempts_that_its_batch_has_used_up() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if 3 in rows:
            raise ValueError("poison")
        if rows == [2] and service.batches.count([2]) < 3:
            raise Passing(500)
        return answers(*rows)

    service = Scripted(reply)

    async def script() -> None:
        job = Job(service, batch=Batch(4, linger=HOUR), errors="column", retry=again(3, 1))
        job.push(0, 1, 2, 3)
        await job.end()
        assert service.batches[:7] == [[0, 1, 2, 3]] * 3 + [[0, 1], [2, 3], [2], [3]]
        assert service.batches.count([2]) == 3
        assert {row: info.attempts for row, info in infos(job).items()} == {3: 7}

    play(script)


def test_without_a_retry_a_failed_batch_is_split_all_the_same() -> None:
    async def script() -> None:
        service = Scripted(poison(1))
        job = Job(service, batch=Batch(4, linger=HOUR))
        job.push(0, 1, 2, 3)
        await job.end()
        assert isinstance(job.error, CallFailed)
        assert "call failed after 3 attempts for row 1: ValueError: bad row 1" in str(job.error)

    play(script)


class Answered(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@pytest.mark.parametrize(
    "error",
    [Answered(429), Answered(503), Answered(401), ConnectionResetError("reset"), ConnectionError("refused")],
    ids=repr,
)
def test_an_error_that_no_row_can_be_blamed_for_splits_no_batch(error: Exception) -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        raise error

    async def script() -> None:
        service = Scripted(reply)
        job = Job(service, batch=Batch(8, linger=HOUR), errors="column", retry=again(3, 1, max_outage=0))
        job.push(*range(8))
        await job.end()
        # Who is not known to the service will not be known to it in a second.
        attempts = 1 if is_permanent(error) else 3
        # A call that was not sent is sent once more at once, beside the attempts.
        calls = attempts + isinstance(error, ConnectionResetError)
        assert service.batches == [[*range(8)]] * calls
        assert [info.attempts for info in infos(job).values()] == [calls] * 8

    play(script)


def test_rows_whose_attempts_are_used_up_take_none_from_those_beside_them() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if number == 1:
            return [OSError("busy") if row == 1 else row for row in rows]
        if number == 2:
            raise ConnectionError("down")
        return rows

    async def script() -> None:
        service = Scripted(reply)
        job = Job(service, batch=Batch(2, linger=1), errors="column", retry=again(2, 10))
        job.push(0, 1)
        await asyncio.sleep(10.2)
        job.push(2)
        await job.end()
        # Row 1 fails in its second attempt; row 2 has had only one, in the same batch.
        assert service.batches == [[0, 1], [1, 2], [2]]
        assert [*infos(job)] == [1]
        assert job.results[2] == 2

    play(script)


@pytest.mark.contract
def test_a_row_in_its_last_attempt_does_not_fail_for_a_poison_row_beside_it() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if 2 in rows:
            raise ValueError("bad row 2")
        return [OSError("busy") if number == 1 else ("answer", row) for row in rows]

    async def script() -> None:
        service = Scripted(reply)
        job = Job(service, batch=Batch(2, linger=1), errors="column", retry=again(2, 10))
        job.push(1)
        await asyncio.sleep(11)
        job.push(2)
        await job.end()
        # The last attempt of row 1 is one without row 2.
        assert service.batches == [[1], [1, 2], [1], [2]]
        assert job.results[0] == ("answer", 1)
        assert infos(job)[2].attempts == 2

    play(script)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("given", "gave"),
    [
        ([1, 2], "2 results"),
        ([1, 2, 3, 4], "4 results"),
        (None, "None"),
        ("abc", "str, which has no results by position"),
        ({1: 1, 2: 2, 3: 3}, "dict, which has no results by position"),
        ({1, 2, 3}, "set, which has no results by position"),
        (7, "int, which has no results by position"),
        (range(1_000_000), "1,000,000 results"),
    ],
    ids=repr,
)
def test_a_wrong_number_of_results_fails_the_batch_and_is_neither_retried_nor_split(
    given: Any, gave: str
) -> None:
    async def script() -> None:
        service = Scripted(lambda number, rows: given)
        job = Job(service, batch=Batch(3), errors="column", retry=again(5, 1))
        job.push(1, 2, 3)
        await job.end()
        assert service.batches == [[1, 2, 3]]
        assert {info.type for info in infos(job).values()} == {"BatchResultError"}
        message = infos(job)[1].message
        assert f"was called with a batch of 3 rows and gave {gave}: it must give a list of 3" in message

    play(script)


def test_results_without_an_end_are_read_no_further_than_needed() -> None:
    taken = []

    def endless() -> Any:
        while True:
            taken.append(len(taken))
            yield taken[-1]

    async def script() -> None:
        job = Job(Scripted(lambda number, rows: endless()), batch=Batch(3))
        job.push(1, 2, 3)
        await job.end()
        assert isinstance(job.error, CallFailed) and type(job.error.cause).__name__ == "BatchResultError"
        assert "gave 4 results or more" in str(job.error)

    play(script)
    assert len(taken) == 4


@pytest.mark.parametrize("kind", [tuple, iter, lambda rows: (row for row in rows)])
def test_results_may_be_any_sequence_or_iterable(kind: Callable[[list[int]], Any]) -> None:
    async def script() -> None:
        job = Job(Scripted(lambda number, rows: kind(rows)), batch=Batch(3))
        job.push(1, 2, 3)
        await job.end()
        assert job.results == [1, 2, 3]

    play(script)


def test_a_predicate_that_raises_fails_the_rows_of_the_batch_with_its_error() -> None:
    def when(error: BaseException) -> bool:
        raise LookupError("the predicate")

    async def script() -> None:
        service = Scripted(poison(1))
        job = Job(service, batch=Batch(2), errors="column", retry=again(3, 1, when=when))
        job.push(0, 1)
        await job.end()
        assert {info.type for info in infos(job).values()} == {"LookupError"}
        assert service.batches == [[0, 1]]

    play(script)


def test_a_result_that_is_not_accepted_is_asked_for_again_alone() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        return ["pending" if row == 1 and number == 1 else row for row in rows]

    async def script() -> None:
        service = Scripted(reply)
        retry = again(2, 1, result=lambda result: result == "pending")
        job = Job(service, batch=Batch(3), retry=retry)
        job.push(0, 1, 2)
        await job.end()
        assert service.batches == [[0, 1, 2], [1]]
        assert job.results == [0, 1, 2]
        assert job.statistics().retries_by_reason == {"result": 1}

    play(script)
