"""A function over HTTP that asks the endpoint of its attempt. On the thread of its loop."""

from __future__ import annotations

from typing import Any

import aiohttp

from pillarbox import current_call


class Asks:
    """An async function of a row, with a session that is opened on the loop of its calls."""

    session: aiohttp.ClientSession

    async def __aenter__(self) -> Asks:
        self.session = aiohttp.ClientSession(raise_for_status=True)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.session.close()

    async def __call__(self, row: int) -> Any:
        """Return the answer of the endpoint. Raises what aiohttp raises."""
        call = current_call()
        async with self.session.get(f"{call.endpoint.url}/{row}") as answer:
            call.report_limits(answer.headers)
            return await answer.json()
