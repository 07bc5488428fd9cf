"""A service by which tasks agree: the first value that is said under a name holds for all who ask.

`AgreementService` is confined to its server's loop; `agree` and an `Agreement` are for any loop.
"""

# Tasks of one job learn facts of a service one by one, and some of these have to be the same for all, as the
# length of the vectors in a column. None of the tasks is the first by anything but time, and each may be
# killed: so the place where they meet is the driver, and one message settles it for a process.

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from pillarbox.rpc.connection import BROKEN, Connection, ProtocolError, RefusedError, RpcHandle, connect
from pillarbox.rpc.server import Service

AGREEMENT = "agreement"
"""The name under which it is served."""
MAX_NAMES = 10_000
"""Names that are kept; of more the oldest are forgotten."""
MAX_NAME_CHARACTERS = 200


class AgreementService(Service):
    """Keeps the first number that is said under each name."""

    def __init__(self) -> None:
        self._agreed: dict[str, int] = {}

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """See `Service`."""
        name, value = hello
        if type(name) is not str or len(name) > MAX_NAME_CHARACTERS or type(value) is not int:
            raise ProtocolError("an agreement on something else than a number under a name")
        agreed = self._agreed.setdefault(name, value)
        while len(self._agreed) > MAX_NAMES:
            del self._agreed[next(iter(self._agreed))]
        connection.send("agreed", agreed)


async def agree(handle: RpcHandle, name: str, value: int) -> int:
    """Say `value` under `name`; returns the one that was said first. Raises ConnectionError."""
    trouble: BaseException | None = None
    for address in handle.addresses:
        try:
            async with connect(handle, address) as connection:
                connection.send("open", handle.service, name, value)
                kind, *fields = await asyncio.wait_for(connection.receive(), handle.timing.connect_timeout_s)
                if kind == "agreed" and type(fields[0]) is int:
                    return fields[0]
                trouble = ProtocolError(f"{kind!r} is not an answer to it")
        except (*BROKEN, RefusedError) as error:
            trouble = error
    raise ConnectionError(f"not reached at {handle.where}: {trouble}")


@dataclass(frozen=True)
class Agreement:
    """A name under which tasks agree on a number, and the way to where they do. Pickles, with its secret."""

    handle: RpcHandle
    name: str

    async def agree(self, value: int) -> int:
        """Say `value`; returns the one that was said first. Raises ConnectionError."""
        return await agree(self.handle, self.name, value)
