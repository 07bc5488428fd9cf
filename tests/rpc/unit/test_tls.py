"""A server with a certificate: all is encrypted, and a client takes that certificate alone."""

from __future__ import annotations

import asyncio
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from pillarbox import Coordinator
from pillarbox.aio.limits.coordinator import CoordinatorHandle
from pillarbox.aio.limits.rate import CoordinatorError, Limits
from pillarbox.rpc.connection import BROKEN, ProtocolError
from pillarbox.rpc.server import MAX_UNAUTHENTICATED
from tests.certificates import make_certificate
from tests.limits.unit.calling import Caller, impatient
from tests.rpc.unit.echo import echoes_of, serving, way_to
from tests.rpc.unit.proxy import Proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.mark.contract("Over TLS messages come through, and nothing of them can be read on the way.")
def test_messages_come_through_and_cannot_be_read(certificate: Path) -> None:
    with serving(certificate=certificate) as host, Proxy(way_to(host)) as proxy:
        for size in (1, 1000, 200_000):
            assert echoes_of(proxy.handle, "x" * size) == ["x" * size]
        assert proxy.passed and b"about me" not in proxy.passed and b"xxxx" not in proxy.passed


def test_without_a_certificate_what_is_said_can_be_read() -> None:
    """So that the test before sees what it looks for."""
    with serving() as host, Proxy(way_to(host)) as proxy:
        echoes_of(proxy.handle, 1)
        assert b"about me" in proxy.passed


@pytest.mark.contract("A client over TLS takes no other certificate than that of its server.")
def test_another_certificate_is_refused(certificate: Path) -> None:
    with serving(certificate=certificate) as host:
        handle = way_to(host)
        with pytest.raises(ProtocolError, match="its certificate is not the one"):
            echoes_of(replace(handle, fingerprint=bytes(32)), 1)
        with pytest.raises(BROKEN):
            echoes_of(replace(handle, fingerprint=None), 1)
        assert echoes_of(handle, 1) == [1]


@pytest.mark.contract("Over TLS nothing that tasks and their coordinator say of limits can be read.")
def test_limits_hold_over_tls_and_nothing_of_them_can_be_read(certificate: Path) -> None:
    limits = Limits(max_calls=5)

    async def begun(shared: CoordinatorHandle) -> int:
        async with Caller(shared.named("name-of-limits").open(limits)) as caller:
            return await caller.calls()

    def passed(certificate: Path | None) -> bytes:
        with (
            Coordinator(certificate=certificate) as coordinator,
            Proxy(coordinator.handle()) as proxy,
        ):
            assert asyncio.run(begun(CoordinatorHandle(proxy.handle, None, 30.0))) == 5
            return bytes(proxy.passed)

    assert b"name-of-limits" in passed(None)
    assert b"name-of-limits" not in passed(certificate)


@pytest.mark.contract("Over TLS who knows the address takes the coordinator's certificate and no other.")
def test_a_coordinator_at_an_address_is_known_by_its_certificate(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMITS_SECRET", "a-secret-" * 4)

    async def begun(known: Path) -> int:
        there = Coordinator.at(*address, secret_env="LIMITS_SECRET", patience=30.0, certificate=known)
        gate = impatient(there.named("g").open(Limits(max_calls=5)), "certificate")
        async with Caller(gate) as caller:
            return await caller.calls()

    with Coordinator(secret_env="LIMITS_SECRET", certificate=certificate) as coordinator:
        address = coordinator.address
        with pytest.raises(CoordinatorError, match="its certificate is not the one"):
            asyncio.run(begun(make_certificate(tmp_path)))
        # The file without the key.
        assert asyncio.run(begun(certificate.with_name("found"))) == 5


def test_a_file_that_holds_no_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    with pytest.raises(OSError, match="No such file"):
        serving(certificate=path).start()
    path.write_text("nothing")
    with pytest.raises(OSError, match="PEM|SSL"):
        serving(certificate=path).start()


def test_strangers_that_do_not_begin_tls_are_bounded_and_go_with_the_server(certificate: Path) -> None:
    with serving(certificate=certificate) as host:
        strangers = [socket.create_connection(host.address) for _ in range(MAX_UNAUTHENTICATED + 20)]
        for each in strangers:
            each.setblocking(False)
        assert echoes_of(way_to(host), 1) == [1]
        wait_until(lambda: sum(map(_has_ended, strangers)) >= 20)
    for each in strangers:
        wait_until(lambda each=each: _has_ended(each))  # type: ignore[misc]
        each.close()


def _has_ended(stranger: socket.socket) -> bool:
    try:
        while stranger.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True
