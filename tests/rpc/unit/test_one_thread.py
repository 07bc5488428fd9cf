"""All servers and clients of a process share one thread, which ends with the last of them."""

from __future__ import annotations

import os
import signal

import pytest

from pillarbox import Coordinator
from tests.rpc.unit.echo import echoes_of, serving, way_to
from tests.threads import begun


@pytest.mark.contract
def test_servers_share_one_thread_and_the_last_one_ends_it() -> None:
    coordinator = Coordinator().start()
    with serving() as first, serving() as second:
        for host in (first, second):
            assert echoes_of(way_to(host), 1) == [1]
        assert len({thread.ident for thread in begun("pillarbox-rpc")}) <= 1
    coordinator.statistics()
    coordinator.close()
    coordinator.close()
    assert not begun("pillarbox-rpc")
    with serving() as again:
        assert echoes_of(way_to(again), 2) == [2]
    assert not begun("pillarbox-rpc")


def test_what_ends_takes_nothing_from_those_that_stay() -> None:
    with serving() as first:
        with serving():
            pass
        assert echoes_of(way_to(first), 3) == [3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_has_a_thread_of_its_own_and_waits_for_nothing_of_its_parents() -> None:
    with serving() as host:
        child = os.fork()
        if not child:
            # Nothing of the tests may run here.
            signal.alarm(60)
            with serving() as own:
                answers = echoes_of(way_to(own), 4)
            host.close()
            os._exit(0 if answers == [4] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert echoes_of(way_to(host), 5) == [5]
