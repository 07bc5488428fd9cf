"""Findings about endpoints that two real processes share by a real coordinator."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox import Coordinator
from tests.limits.unit.finding import Moody, Program
from tests.waiting import POLL_S


@pytest.mark.contract(
    "A process makes no call to an address that another one found ill, and uses it again when that one does."
)
def test_two_processes_share_what_they_find_of_an_address() -> None:
    async def is_seen(program: Program, state: str) -> None:
        while await program.ask("?") != state:
            await asyncio.sleep(POLL_S)

    async def script() -> None:
        services = Moody(), Moody()
        one, two = [await each.start() for each in services]
        first_url, second_url = f"http://127.0.0.1:{one}", f"http://127.0.0.1:{two}"
        with Coordinator() as coordinator:
            shared = coordinator.named("service")
            first, second = (Program(shared, (one, two)) for _ in range(2))
            try:
                assert await second.ask("row") == first_url
                services[0].is_ill = True
                assert await first.ask("row") == second_url
                await is_seen(second, "open")
                calls = services[0].calls
                assert await second.ask("row") == second_url
                assert services[0].calls == calls
                services[0].is_ill = False
                # The second process makes no call, so that the first one probes.
                while await first.ask("row") != first_url:
                    await asyncio.sleep(POLL_S)
                await is_seen(second, "closed")
                assert await second.ask("row") == first_url
            finally:
                for program in (first, second):
                    program.end()
        for service in services:
            service.server.close()

    asyncio.run(script())
