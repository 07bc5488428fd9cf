"""A server on a thread of its own: what it leaves when it cannot begin or end, and what it is asked."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from pillarbox.rpc.server import Hosted, ServiceHost
from tests.rpc.unit.echo import SERVICE, Echo, echoes_of, serving, way_to
from tests.threads import begun


class Counter:
    """Listens nowhere."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def listen(self, host: str, port: int) -> int:
        if self.number == 1:
            raise OSError("the port is taken")
        return 4000 + self.number

    async def stop(self) -> str:
        if self.number == 2:
            raise ValueError("the disk is full")
        return f"stopped {self.number}"

    def divide(self, by: int) -> float:
        return self.number / by


class Counted(Hosted[Counter]):
    def __init__(self) -> None:
        super().__init__("counter", "localhost", 0, None)
        self.made = 0
        self.ended: list[str | None] = []

    def _make(self) -> Counter:
        self.made += 1
        return Counter(self.made)

    def close(self) -> None:
        self.ended.append(self._end())


@pytest.mark.contract
def test_a_server_that_cannot_begin_or_end_leaves_no_thread_and_may_be_started_again() -> None:
    counted = Counted()
    with pytest.raises(OSError, match="port is taken"):
        counted.start()
    assert repr(counted) == "<Counted on localhost:0, stopped>"
    assert not begun("pillarbox-rpc")
    counted.start()
    assert begun("pillarbox-rpc")
    with pytest.raises(RuntimeError, match="the counter has been started"):
        counted.start()
    assert counted.made == 2
    with pytest.raises(ValueError, match="disk is full"):
        counted.close()
    assert not begun("pillarbox-rpc")
    with counted:
        assert repr(counted) == "<Counted on localhost:4003, running>"
    counted.close()
    assert counted.ended == ["stopped 3", None]
    assert not begun("pillarbox-rpc")


def test_what_it_is_asked_is_answered_on_its_thread_and_what_that_raises_is_raised() -> None:
    counted = Counted()
    counted.made = 3
    with counted:
        assert counted._ask(lambda server: server.divide(2)) == 2.0
        with pytest.raises(ZeroDivisionError):
            counted._ask(lambda server: server.divide(0))
        thread = begun("pillarbox-rpc")[0]
        assert counted._ask(lambda server: threading.current_thread()) is thread
    with pytest.raises(RuntimeError, match="the counter is not started"):
        counted._ask(lambda server: server.divide(1))


@pytest.mark.contract("A server listens on this machine alone unless it is asked.")
def test_it_listens_on_this_machine_alone_unless_it_is_asked() -> None:
    with serving() as host:
        assert host.address[0] == "127.0.0.1"
        _, server = host._running()
        listening = server._server
        assert listening is not None
        assert [each.getsockname()[0] for each in listening.sockets] == ["127.0.0.1"]
    with serving(advertise="driver.example") as host:
        assert way_to(host).addresses == (("driver.example", host.address[1]),)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"host": ""}, ValueError, "host="),
        ({"port": 70_000}, ValueError, "port=70000"),
        ({"port": "x"}, TypeError, "port='x'"),
        ({"advertise": 7}, TypeError, "advertise=7"),
    ],
)
def test_a_bad_argument_is_named(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ServiceHost(SERVICE, Echo(), **arguments)


def test_a_handle_pickles_and_shows_no_secret() -> None:
    with serving() as host:
        handle = way_to(host)
        copy = pickle.loads(pickle.dumps(handle))
        assert echoes_of(copy, 1) == [1]
        for text in (repr(handle), repr(copy), repr(host)):
            assert handle.secret.hex() not in text
            assert repr(handle.secret)[2:-1] not in text
