"""A local Spark is harmed: what is committed is right, and finished calls are not paid again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fuzz.chaos.run import Outcome, Session
from tests.versions import needs_async_stream

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Harmed = Callable[..., Outcome]


def happened(outcome: Outcome) -> list[str]:
    """The faults, without the ends of the job that came of them."""
    return [fault.kind for fault in outcome.fired if fault.kind != "the job's end"]


@pytest.mark.contract
def test_a_batch_gives_each_row_once_and_no_finished_call_is_paid_again(
    local: Session, harmed: Harmed
) -> None:
    faults = ["worker", "service resets", "writing worker", "compaction", "service fails", "stopped worker"]
    outcome = harmed(local, "batch", *faults)
    assert happened(outcome) == faults
    assert outcome.verdict.wrong == []
    assert outcome.starts == 1


@pytest.mark.contract
def test_a_stream_goes_on_from_its_checkpoint_and_no_finished_call_is_paid_again(
    local: Session, harmed: Harmed
) -> None:
    faults = ["clock", "service late", "driver", "writing worker", "service hangs"]
    outcome = harmed(local, "stream", *faults)
    assert happened(outcome) == faults
    assert outcome.verdict.wrong == []
    assert outcome.starts == 2


@needs_async_stream
@pytest.mark.contract
def test_both_sinks_of_a_stream_have_each_row_once_whatever_dies_while_its_calls_wait(
    local: Session, harmed: Harmed
) -> None:
    # The last one waits for the end of a task, which always comes.
    faults = ["call process", "worker", "driver", "writing worker", "worker behind state"]
    outcome = harmed(local, "state", *faults)
    assert happened(outcome) == faults
    assert outcome.verdict.wrong == []


@pytest.mark.parametrize("kind", ["shuffled", "repeated", "twice", "changed", "column"])
def test_each_kind_of_input_gives_each_row_once_and_with_one_answer(
    local: Session, harmed: Harmed, kind: str
) -> None:
    faults = ["worker", "power loss"]
    outcome = harmed(local, kind, *faults)
    assert set(happened(outcome)) <= set(faults)
    assert outcome.fired
    assert outcome.verdict.wrong == []


@pytest.mark.contract
def test_a_full_disk_ends_the_job_with_that_reason_and_loses_nothing(local: Session, harmed: Harmed) -> None:
    outcome = harmed(local, "batch", "full disk")
    if outcome.skipped:
        pytest.skip(outcome.skipped[0])
    assert happened(outcome) == ["full disk"]
    assert outcome.starts == 2
    assert outcome.verdict.wrong == []


def test_without_a_ledger_the_same_fault_has_finished_calls_paid_again(
    local: Session, harmed: Harmed
) -> None:
    outcome = harmed(local, "batch", "worker", contender="gather", parts=1)
    assert happened(outcome) == ["worker"]
    assert outcome.verdict.wrong == []
    # All of them: the next attempt knows nothing of what was done.
    finished = sum(at <= outcome.fired[0].at for at in outcome.first_answers)
    assert outcome.verdict.repeated >= 0.9 * finished > 0
