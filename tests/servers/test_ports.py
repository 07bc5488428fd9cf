"""A port of a server that a test starts is that server's alone, also while nobody listens there."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from pathlib import Path

import pytest

from bench.demo.ports import Ports
from bench.demo.server_process import ServerProcess
from tests.servers.kafka_server import KafkaServer

LOCAL_PORT_RANGE = 51
"""IP_LOCAL_PORT_RANGE: from which ports Linux chooses one for this socket."""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lets two bind what none listens at"
)


@pytest.fixture
def ports() -> Ports:
    return Ports(2)


def any_port_of(number: int) -> socket.socket:
    """A socket that has no other port to be given."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.setsockopt(socket.IPPROTO_IP, LOCAL_PORT_RANGE, struct.pack("=I", number << 16 | number))
    except OSError:
        made.close()
        pytest.skip("needs Linux 6.3")
    return made


def listening(number: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", number))
    made.listen()
    return made


def test_nobody_is_given_them_before_while_and_after_the_server_listens(ports: Ports) -> None:
    number = ports.numbers[0]
    with any_port_of(number) as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", 0))
    with listening(number), any_port_of(number) as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", 0))
    with any_port_of(number) as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", 0))
    # Nor as the near end of a connection.
    with (
        listening(ports.numbers[1]) as other,
        any_port_of(number) as stranger,
        pytest.raises(OSError, match="assign"),
    ):
        stranger.connect(other.getsockname())
    ports.give_up()
    with any_port_of(number) as stranger:
        stranger.bind(("127.0.0.1", 0))
        assert stranger.getsockname()[1] == number


def test_the_server_that_names_one_gets_it_as_often_as_it_starts_and_until_then_nobody_answers(
    ports: Ports,
) -> None:
    for number in [*ports.numbers, *ports.numbers]:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", number), 1.0)
        with listening(number), socket.create_connection(("127.0.0.1", number), 1.0):
            pass


@pytest.mark.slow
@pytest.mark.server
def test_a_broker_keeps_its_ports_while_it_is_down(tmp_path: Path) -> None:
    server = KafkaServer(tmp_path)
    server.close()
    for place in (server.bootstrap, server.guarded):
        number = int(place.partition(":")[2])
        with any_port_of(number) as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", 0))


def test_a_server_of_the_demo_keeps_its_port_from_its_start_to_its_end() -> None:
    with ServerProcess("bench.demo.lookup_service") as server:
        number = int(server.url.rpartition(":")[2])
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        with any_port_of(number) as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", 0))
