"""A standalone cluster is harmed while it works: executors, driver, workers, slow ones that are doubled."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

import pytest

from fuzz.chaos import processes
from fuzz.chaos.run import Outcome, Session
from tests.versions import needs_async_stream

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Harmed = Callable[..., Outcome]


def happened(outcome: Outcome) -> list[str]:
    """The faults, without the ends of the job that came of them."""
    return [fault.kind for fault in outcome.fired if fault.kind != "the job's end"]


@pytest.mark.contract
def test_a_batch_gives_each_row_once_whatever_dies(cluster: Session, harmed: Harmed) -> None:
    faults = ["executor", "stopped worker", "writing worker", "driver", "worker"]
    outcome = harmed(cluster, "batch", *faults)
    assert happened(outcome) == faults
    assert outcome.verdict.wrong == []


@pytest.mark.contract
def test_a_stream_gives_each_row_once_whatever_dies(cluster: Session, harmed: Harmed) -> None:
    faults = ["writing worker", "executor", "service hangs", "clock", "worker"]
    outcome = harmed(cluster, "stream", *faults)
    assert happened(outcome) == faults
    assert outcome.verdict.wrong == []


@needs_async_stream
@pytest.mark.contract
def test_both_sinks_of_a_stream_on_a_cluster_have_each_row_once_whatever_dies_while_its_calls_wait(
    cluster: Session, harmed: Harmed
) -> None:
    # The last one waits for the end of a task, which always comes.
    faults = ["call process", "executor", "driver", "worker behind state"]
    outcome = harmed(cluster, "state", *faults)
    assert happened(outcome) == faults
    assert outcome.verdict.wrong == []


@needs_async_stream
@pytest.mark.contract
def test_both_sinks_of_a_stream_have_each_row_once_where_a_second_attempt_overtakes_a_slow_task(
    cluster: Session, harmed: Harmed
) -> None:
    faults = ["slow task"] * 3
    outcome = harmed(cluster, "state", *faults)
    assert happened(outcome) == faults
    assert outcome.verdict.wrong == []
    assert outcome.starts == 1


def test_nothing_of_the_cluster_listens_beyond_loopback(cluster: Session) -> None:
    family = cluster.driver().family()
    listening = processes.ports(family)
    assert len(processes.javas(family)) >= 3
    assert len({pid for pid, _ in listening}) >= 3
    for pid, address in listening:
        ip = ipaddress.ip_address(address)
        assert (getattr(ip, "ipv4_mapped", None) or ip).is_loopback, (pid, address)
