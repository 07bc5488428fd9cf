"""The channel between a coordinator and its readers: requests, messages both ways, over real sockets."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pillarbox.rpc import client as client_module
from pillarbox.rpc import connection as connection_module
from pillarbox.rpc.client import RemoteError, RpcError, RpcHandle
from pillarbox.rpc.server import Peer, ServiceHost
from tests.sources.unit.proxy import Proxy

LONG = 30.0
ROOT = Path(__file__).resolve().parents[3]


class Echo:
    """A service that gives back what it is asked, and says back what it is told. Keeps what happened."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.about: list[Any] = []
        self.heard: list[Any] = []
        self.ends: list[bool] = []
        self.peers: list[Peer] = []
        self.later: list[Future[Any]] = []
        self.back = True

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, LONG)

    def opened(self, peer: Peer, about: Any) -> None:
        if about == "unwanted":
            raise ValueError("no reader of ours")
        with self.changed:
            self.about.append(about)
            self.peers.append(peer)
            self.changed.notify_all()

    def request(self, peer: Peer, body: Any) -> Any:
        if body == "bad":
            raise KeyError("nothing like that")
        if body == "long":
            return "x" * 300_000
        if body == "later":
            future: Future[Any] = Future()
            with self.changed:
                self.later.append(future)
                self.changed.notify_all()
            return future
        return {"echo": body}

    def pushed(self, peer: Peer, body: Any) -> None:
        if body == "nonsense":
            raise ValueError("nothing that a reader says")
        with self.changed:
            self.heard.append(body)
            self.changed.notify_all()
        if self.back:
            peer.push(body)

    def gone(self, peer: Peer, said_so: bool) -> None:
        with self.changed:
            self.ends.append(said_so)
            self.changed.notify_all()


class Ear:
    """Records the messages to a client."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.heard: list[Any] = []
        self.failures: list[Exception] = []

    def receive(self, body: Any) -> None:
        with self.changed:
            self.heard.append(body)
            self.changed.notify_all()

    def failed(self, error: Exception) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, LONG)


@pytest.fixture
def channel() -> Iterator[ServiceHost]:
    with ServiceHost(grace=0.2) as channel:
        yield channel


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def handle(channel: ServiceHost, echo: Echo) -> RpcHandle:
    return channel.serve("echo", echo)


def test_many_threads_ask_one_client_and_each_gets_its_answer(handle: RpcHandle) -> None:
    with handle.connect() as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(client.request, range(400)))
    assert answers == [{"echo": number} for number in range(400)]


def test_what_a_service_raises_the_client_raises_and_goes_on(handle: RpcHandle) -> None:
    with handle.connect() as client:
        with pytest.raises(RemoteError, match="nothing like that") as raised:
            client.request("bad")
        assert raised.value.kind == "KeyError"
        assert pickle.loads(pickle.dumps(raised.value)).kind == "KeyError"
        assert client.request(1) == {"echo": 1}


def test_an_answer_may_come_later_and_holds_up_no_other(handle: RpcHandle, echo: Echo) -> None:
    with handle.connect() as client:
        slow = client.submit("later")
        echo.until(lambda: len(echo.later) == 1)
        assert client.request("quick") == {"echo": "quick"}
        with pytest.raises(TimeoutError, match=r"'echo' for 0\.01 s"):
            client.request("later", timeout=0.01)
        echo.later[0].set_result("at last")
        assert slow.result(LONG) == "at last"
        failing = client.submit("later")
        echo.until(lambda: len(echo.later) == 3)
        echo.later[2].set_exception(OSError("gone"))
        with pytest.raises(RemoteError, match="gone"):
            failing.result(LONG)


@pytest.mark.contract
def test_messages_come_both_ways_in_order_each_once(handle: RpcHandle, echo: Echo) -> None:
    ear = Ear()
    with handle.connect({"subtask": 3}, receive=ear.receive) as client:
        for number in range(1000):
            client.push(number)
        ear.until(lambda: len(ear.heard) >= 1000)
    assert ear.heard == echo.heard == list(range(1000))
    assert echo.about == [{"subtask": 3}]


@pytest.mark.contract
@pytest.mark.parametrize("cut_after", [900, 2500, 8000])
def test_broken_connections_lose_nothing_and_repeat_nothing(echo: Echo, cut_after: int) -> None:
    ear = Ear()
    with (
        ServiceHost(grace=LONG) as channel,
        Proxy(channel.serve("echo", echo), cut_after) as proxy,
        proxy.handle.connect(receive=ear.receive) as client,
    ):
        asked = []
        for number in range(60):
            client.push([number, "x" * (number * 3)])
            asked.append(client.submit(number))
        assert [each.result(LONG) for each in asked] == [{"echo": number} for number in range(60)]
        ear.until(lambda: len(ear.heard) >= 60)
        assert ear.heard == echo.heard == [[number, "x" * (number * 3)] for number in range(60)]
        assert proxy.connections > 1
        proxy.cut_after = None
        assert not echo.ends and not ear.failures


def test_more_than_a_socket_holds_goes_through_in_both_directions(handle: RpcHandle, echo: Echo) -> None:
    ear = Ear()
    text = "x" * 200_000
    with handle.connect(receive=ear.receive) as client:
        for number in range(50):
            client.push([number, text])
        ear.until(lambda: len(ear.heard) >= 50)
    assert [number for number, _ in ear.heard] == list(range(50))


def test_requests_and_answers_that_no_connection_holds_at_once_all_go_through(handle: RpcHandle) -> None:
    text = "x" * 200_000
    with handle.connect() as client:
        asked = [client.submit([number, text]) for number in range(40)]
        assert [each.result(LONG)["echo"][0] for each in asked] == list(range(40))


def test_what_is_said_while_a_connection_is_full_of_other_things_is_not_forgotten(
    channel: ServiceHost, handle: RpcHandle, echo: Echo
) -> None:
    ear = Ear()
    held = threading.Event()
    with Proxy(handle) as proxy, proxy.handle.connect(receive=ear.receive) as client:
        client.request(1)
        # Nothing is taken from the sockets meanwhile.
        proxy._thread.call(lambda: held.wait(LONG))

        def fill(_: object) -> None:
            connection = echo.peers[0]._connection
            assert connection is not None
            while connection.unsent <= connection_module.MAX_UNSENT_NBYTES:
                connection.send("beat", "x" * 100_000)
            echo.peers[0].push("there")

        channel._ask(fill)
        # That of the service runs after it.
        channel._ask(lambda _: None)
        held.set()
        ear.until(lambda: ear.heard == ["there"])


def test_a_request_comes_once_although_the_connection_breaks_before_its_answer(echo: Echo) -> None:
    with ServiceHost(grace=LONG) as channel, Proxy(channel.serve("echo", echo)) as proxy:
        with proxy.handle.connect() as client:
            slow = client.submit("later")
            echo.until(lambda: len(echo.later) == 1)
            proxy.cut()
            assert client.request(1) == {"echo": 1}
            echo.later[0].set_result("at last")
            assert slow.result(LONG) == "at last"
        assert len(echo.later) == 1


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
def test_a_reason_of_any_length_reaches_the_client(
    handle: RpcHandle, echo: Echo, letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ear = Ear()
    why = letter * 300_000

    def request(peer: Peer, body: Any) -> Any:
        raise ValueError(why)

    monkeypatch.setattr(echo, "request", request)
    with handle.connect(failed=ear.failed) as client:
        with pytest.raises(RemoteError, match=letter * 1000):
            client.request(1, LONG)
        echo.peers[0].drop(why)
        ear.until(lambda: bool(ear.failures))
        assert str(ear.failures[0]).startswith(letter * 1000)


def test_a_client_that_says_so_is_gone_at_once_and_what_it_said_came_first(
    handle: RpcHandle, echo: Echo
) -> None:
    echo.back = False
    client = handle.connect()
    for number in range(500):
        client.push(number)
    client.close()
    client.close()
    # The farewell was acknowledged, so it has been heard.
    assert echo.heard == list(range(500))
    assert echo.ends == [True]
    with pytest.raises(RpcError, match="closed"):
        client.request(1)


CLIENT = """
import pickle, sys
client = pickle.loads(bytes.fromhex(sys.argv[1])).connect("a process")
client.request(1)
client.push("said before")
client.request(2)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.contract
def test_a_killed_process_counts_as_dead_after_the_grace(handle: RpcHandle, echo: Echo) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", CLIENT, pickle.dumps(handle).hex()],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        assert echo.heard == ["said before"]
        assert echo.ends == []
    finally:
        program.kill()
        program.communicate()
    echo.until(lambda: bool(echo.ends))
    assert echo.ends == [False]
    # Nobody hears it.
    echo.peers[0].push("too late")


def test_who_comes_back_in_time_is_not_dead(echo: Echo) -> None:
    with ServiceHost(grace=LONG) as channel:
        handle = channel.serve("echo", echo)
        with Proxy(handle) as proxy, proxy.handle.connect() as client:
            client.request(1)
            proxy.cut()
            assert client.request(2) == {"echo": 2}
            assert proxy.connections == 2
            assert echo.ends == []
            assert len(echo.about) == 1


def test_who_comes_back_too_late_is_refused_and_told_why(handle: RpcHandle, echo: Echo) -> None:
    ear = Ear()
    with Proxy(handle) as proxy, proxy.handle.connect(failed=ear.failed) as client:
        client.request(1)
        proxy.refuse(True)
        proxy.cut()
        echo.until(lambda: bool(echo.ends))
        proxy.refuse(False)
        ear.until(lambda: bool(ear.failures))
        with pytest.raises(RpcError, match="counts as dead"):
            client.request(2)
    assert echo.ends == [False]
    assert len(ear.failures) == 1


def test_a_connection_that_has_gone_silent_is_given_up_by_both(
    handle: RpcHandle, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEARTBEAT_INTERVAL_S", 0.05)
    monkeypatch.setattr(connection_module, "HEARTBEAT_TIMEOUT_S", 0.2)
    ear = Ear()
    echo = Echo()
    with ServiceHost(grace=0.2) as channel:
        handle = channel.serve("echo", echo)
        with Proxy(handle) as proxy, proxy.handle.connect(failed=ear.failed, patience=0.5) as client:
            client.request(1)
            proxy.refuse(True)
            proxy.hold()
            echo.until(lambda: bool(echo.ends))
            ear.until(lambda: bool(ear.failures))
    assert echo.ends == [False]


def test_beats_keep_a_quiet_connection_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HEARTBEAT_INTERVAL_S", 0.05)
    monkeypatch.setattr(connection_module, "HEARTBEAT_TIMEOUT_S", 0.3)
    echo = Echo()
    with ServiceHost(grace=0.1) as channel:
        handle = channel.serve("echo", echo)
        with Proxy(handle) as proxy, proxy.handle.connect() as client:
            client.request(1)
            slow = client.submit("later")
            echo.until(lambda: bool(echo.later))
            # Longer than a silence may be.
            threading.Timer(1.0, echo.later[0].set_result, ["there"]).start()
            assert slow.result(LONG) == "there"
            assert proxy.connections == 1


def test_without_a_server_a_client_gives_up_after_its_patience_and_says_where_it_looked() -> None:
    with ServiceHost() as channel:
        handle = channel.serve("echo", Echo())
    ear = Ear()
    begun = time.monotonic()
    with handle.connect(failed=ear.failed, patience=0.3) as client:
        pushed = client.submit(1)
        with pytest.raises(RpcError, match=rf"127\.0\.0\.1:{channel.address[1]}.*not there for 0\.3 s"):
            pushed.result(LONG)
        with pytest.raises(RpcError, match="not there"):
            client.request(2)
    assert time.monotonic() - begun >= 0.3
    assert len(ear.failures) == 1


def test_the_end_of_a_service_fails_its_clients_and_no_other(channel: ServiceHost, echo: Echo) -> None:
    other = Echo()
    ear = Ear()
    handle = channel.serve("echo", echo)
    with handle.connect(failed=ear.failed) as client, channel.serve("other", other).connect() as second:
        client.request(1)
        second.request(1)
        slow = client.submit("later")
        echo.until(lambda: bool(echo.later))
        channel.withdraw("echo")
        with pytest.raises(RpcError, match="'echo' has ended"):
            slow.result(LONG)
        ear.until(lambda: bool(ear.failures))
        assert second.request(2) == {"echo": 2}
        assert echo.ends == [False]
    with (
        handle.connect() as late,
        pytest.raises(RpcError, match="nothing called 'echo' is served here"),
    ):
        late.request(1)


def test_a_name_is_served_once(channel: ServiceHost, handle: RpcHandle) -> None:
    with pytest.raises(ValueError, match="name='echo': is served already"):
        channel.serve("echo", Echo())


def test_a_client_that_the_service_does_not_want_is_told_why(handle: RpcHandle, echo: Echo) -> None:
    with (
        handle.connect("unwanted") as client,
        pytest.raises(RpcError, match="ValueError: no reader of ours"),
    ):
        client.request(1)
    assert echo.ends == []


def test_a_client_that_says_nonsense_is_dropped_and_no_other(handle: RpcHandle, echo: Echo) -> None:
    ear = Ear()
    with handle.connect() as other, handle.connect(failed=ear.failed) as client:
        other.request(1)
        client.request(1)
        client.push("nonsense")
        ear.until(lambda: bool(ear.failures))
        assert "nothing that a reader says" in str(ear.failures[0])
        echo.until(lambda: echo.ends == [False])
        assert other.request(2) == {"echo": 2}


def test_a_client_that_cannot_take_a_message_fails(handle: RpcHandle) -> None:
    ear = Ear()

    def receive(body: Any) -> None:
        raise RuntimeError("no room")

    with handle.connect(receive=receive, failed=ear.failed) as client:
        client.push(1)
        ear.until(lambda: bool(ear.failures))
    assert "no room" in str(ear.failures[0])


@pytest.mark.parametrize("say", ["push", "request"])
def test_what_is_too_long_or_no_json_is_refused_where_it_is_said(handle: RpcHandle, say: str) -> None:
    with handle.connect() as client:
        with pytest.raises(ValueError, match="300,002 bytes: at most"):
            getattr(client, say)("x" * 300_000)
        with pytest.raises(TypeError):
            getattr(client, say)(object())
        with pytest.raises(ValueError, match="Out of range"):
            getattr(client, say)(float("nan"))
        with pytest.raises(RemoteError, match="300,002 bytes: at most"):
            client.request("long")
        assert client.request(1) == {"echo": 1}


def test_a_peer_that_takes_nothing_is_given_up(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_KEPT_NBYTES", 100_000)
    with (
        ServiceHost(grace=LONG) as channel,
        Proxy(channel.serve("echo", echo)) as proxy,
        proxy.handle.connect() as client,
    ):
        client.request(1)
        proxy.hold()
        for _ in range(12):
            echo.peers[0].push("x" * 10_000)
        echo.until(lambda: echo.ends == [False])
        client.abandon()


def test_a_handle_pickles_and_shows_no_secret(channel: ServiceHost, handle: RpcHandle) -> None:
    secret = channel._secret
    copy = pickle.loads(pickle.dumps(handle))
    with copy.connect() as client:
        assert client.request(1) == {"echo": 1}
        texts = [repr(each) for each in (handle, copy, channel, client)]
    for text in texts:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text


@pytest.mark.contract("A channel listens on this machine alone unless it is asked.")
def test_it_listens_on_this_machine_alone_unless_it_is_asked() -> None:
    with ServiceHost() as channel:
        assert channel.address[0] == "127.0.0.1"
        _, server = channel._running()
        listening = server._server
        assert listening is not None
        assert [each.getsockname()[0] for each in listening.sockets] == ["127.0.0.1"]
    with ServiceHost(advertise="driver.example") as channel:
        assert channel.serve("echo", Echo()).addresses == (("driver.example", channel.address[1]),)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"host": ""}, ValueError, "host="),
        ({"port": 70_000}, ValueError, "port=70000"),
        ({"port": "x"}, TypeError, "port='x'"),
        ({"advertise": 7}, TypeError, "advertise=7"),
        ({"grace": 0}, ValueError, "grace=0"),
    ],
)
def test_a_bad_argument_is_named(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ServiceHost(**arguments)


def test_who_waits_for_a_channel_that_starts_again_is_served(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_PAUSE_S", 0.001)
    with ServiceHost() as channel:
        handle = channel.serve("echo", echo)
    for _ in range(30):
        with handle.connect() as client, channel.start():
            assert client.request(1, LONG) == {"echo": 1}
            client.close()


def test_a_channel_that_is_not_started_says_so() -> None:
    channel = ServiceHost()
    with pytest.raises(RuntimeError, match="not started"):
        channel.serve("echo", Echo())
    channel.close()
