"""All servers and clients of a process share one thread, which ends with the last of them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from pillarbox import Coordinator
from pillarbox.rpc.client import RpcError
from pillarbox.rpc.server import Peer, ServiceHost
from tests.threads import begun


class Silent:
    def opened(self, peer: Peer, about: Any) -> None:
        pass

    def request(self, peer: Peer, body: Any) -> Any:
        return body

    def pushed(self, peer: Peer, body: Any) -> None:
        pass

    def gone(self, peer: Peer, said_so: bool) -> None:
        pass


@pytest.mark.contract
def test_servers_and_clients_share_one_thread_and_the_last_one_ends_it() -> None:
    coordinator = Coordinator().start()
    with ServiceHost() as first, ServiceHost() as second:
        for channel in (first, second):
            with channel.serve("silent", Silent()).connect() as client:
                assert client.request(1, 30) == 1
        assert len({thread.ident for thread in begun("pillarbox-rpc")}) <= 1
    coordinator.statistics()
    coordinator.close()
    coordinator.close()
    assert not begun("pillarbox-rpc")
    with ServiceHost() as again, again.serve("silent", Silent()).connect() as client:
        assert client.request(2, 30) == 2
    assert not begun("pillarbox-rpc")


def test_what_ends_takes_nothing_from_those_that_stay() -> None:
    with ServiceHost() as first:
        client = first.serve("silent", Silent()).connect()
        with ServiceHost() as second:
            second.serve("silent", Silent()).connect().abandon()
        assert client.request(3, 30) == 3
        client.close()
        client.abandon()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_has_a_thread_of_its_own() -> None:
    with ServiceHost() as channel:
        handle = channel.serve("silent", Silent())
        child = os.fork()
        if not child:
            # Nothing of the tests may run here.
            signal.alarm(60)
            with handle.connect() as client:
                os._exit(0 if client.request(4, 30) == 4 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_waits_for_nothing_of_its_parents() -> None:
    with ServiceHost() as channel, channel.serve("silent", Silent()).connect() as client:
        client.request(1, 30)
        child = os.fork()
        if not child:
            # Nothing of the tests may run here.
            signal.alarm(4)
            try:
                client.request(2)
            except RpcError as error:
                client.close()
                channel.close()
                os._exit(0 if "another process" in str(error) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.request(3, 30) == 3
