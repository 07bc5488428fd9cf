"""A server on a thread of its own: what it leaves when it cannot begin or end, and what it is asked."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from pillarbox.rpc.server import RpcServer, Service, addresses_of
from tests.rpc.unit.echo import SERVICE, Echo, echoes_of, serving, way_to
from tests.threads import begun


class Failing(Service):
    """The first time it cannot begin, the second time it cannot end."""

    def __init__(self) -> None:
        self.begun = 0

    async def begin(self, port: int) -> None:
        self.begun += 1
        if self.begun == 1:
            raise OSError("the disk is full")

    async def end(self) -> None:
        if self.begun == 2:
            raise ValueError("the disk is full at the end")


@pytest.mark.contract
def test_a_server_that_cannot_begin_or_end_leaves_no_thread_and_may_be_started_again() -> None:
    service = Failing()
    server = RpcServer("nothing", service)
    with pytest.raises(OSError, match="disk is full"):
        server.start()
    assert repr(server) == "<RpcServer on 127.0.0.1:0, stopped>"
    assert not begun("pillarbox-rpc")
    server.start()
    assert begun("pillarbox-rpc")
    with pytest.raises(RuntimeError, match="the server of 'nothing' has been started"):
        server.start()
    assert service.begun == 2
    address = server.address
    with pytest.raises(ValueError, match="disk is full at the end"):
        server.close()
    assert not begun("pillarbox-rpc")
    with server:
        assert repr(server) == f"<RpcServer on 127.0.0.1:{address[1]}, running>"
    server.close()
    assert not begun("pillarbox-rpc")


def test_what_it_is_asked_is_answered_on_its_thread_and_what_that_raises_is_raised() -> None:
    with serving() as server:
        with pytest.raises(ZeroDivisionError):
            server._ask(lambda: 1 / 0)
        thread = begun("pillarbox-rpc")[0]
        assert server._ask(threading.current_thread) is thread
    with pytest.raises(RuntimeError, match="the server of 'echo' is not started"):
        server._ask(threading.current_thread)


@pytest.mark.contract("A server listens on this machine alone unless it is asked.")
def test_it_listens_on_this_machine_alone_unless_it_is_asked() -> None:
    with serving() as host:
        assert host.address[0] == "127.0.0.1"
        assert [each.getsockname()[0] for each in host._server.sockets] == ["127.0.0.1"]
    with serving(advertise="driver.example") as host:
        assert way_to(host).addresses == (("driver.example", host.address[1]),)


def test_a_server_on_all_addresses_names_the_loopback_address_that_it_listens_on() -> None:
    assert addresses_of("0.0.0.0", None)[-1] == "127.0.0.1"
    assert addresses_of("::", None)[-1] == "::1"


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
        RpcServer(SERVICE, Echo(), **arguments)


def test_a_handle_pickles_and_shows_no_secret() -> None:
    with serving() as host:
        handle = way_to(host)
        copy = pickle.loads(pickle.dumps(handle))
        assert echoes_of(copy, 1) == [1]
        for text in (repr(handle), repr(copy), repr(host)):
            assert handle.secret.hex() not in text
            assert repr(handle.secret)[2:-1] not in text
