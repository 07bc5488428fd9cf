"""Clients of an `AgreementService` agree on the number that was said first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pillarbox.rpc import agreement
from pillarbox.rpc.agreement import AGREEMENT, AgreementService, agree
from pillarbox.rpc.connection import RpcHandle
from pillarbox.rpc.server import RpcServer


def said(handle: RpcHandle, *pairs: tuple[str, Any]) -> list[int]:
    async def all_of_them() -> list[int]:
        return [await agree(handle, name, value) for name, value in pairs]

    return asyncio.run(all_of_them())


def test_the_first_number_under_a_name_holds_for_all_who_come_later() -> None:
    with RpcServer(AGREEMENT, AgreementService()) as server:
        assert said(server.handle(), ("a", 4), ("b", 6), ("a", 6)) == [4, 6, 4]
        assert said(server.handle(), ("b", 4)) == [6]


def test_those_who_come_at_a_time_agree() -> None:
    async def together(handle: RpcHandle) -> set[int]:
        return {*await asyncio.gather(*(agree(handle, "a", value) for value in range(1, 20)))}

    with RpcServer(AGREEMENT, AgreementService()) as server:
        assert len(asyncio.run(together(server.handle()))) == 1


def test_a_service_beside_another_one_is_found_by_its_name() -> None:
    server = RpcServer("main", AgreementService())
    server._others[AGREEMENT] = AgreementService()
    with server:
        main = server.handle()
        assert said(main, ("a", 1)) == [1]
        assert said(replace(main, service=AGREEMENT), ("a", 2)) == [2]
        with pytest.raises(ConnectionError, match="nothing called"):
            said(replace(main, service="none"), ("a", 3))


def test_a_server_that_is_gone_is_told_as_one() -> None:
    with RpcServer(AGREEMENT, AgreementService()) as server:
        handle = server.handle()
    with pytest.raises(ConnectionError, match=r"not reached at 127\.0\.0\.1"):
        said(handle, ("a", 4))


@pytest.mark.parametrize("pair", [("x" * 201, 1), ("a", "1"), ("a", None)])
def test_something_else_than_a_number_under_a_name_is_refused(pair: tuple[str, Any]) -> None:
    with RpcServer(AGREEMENT, AgreementService()) as server, pytest.raises(ConnectionError):
        said(server.handle(), pair)


def test_the_oldest_names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "MAX_NAMES", 2)
    with RpcServer(AGREEMENT, AgreementService()) as server:
        assert said(server.handle(), ("a", 1), ("b", 2), ("c", 3), ("b", 9), ("a", 9)) == [1, 2, 3, 2, 9]
