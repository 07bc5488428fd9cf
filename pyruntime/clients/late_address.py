"""An address that is known where a client opens, and not before: that of a server beside the worker.

A protocol, so that clients need not know who starts servers. Pure; any thread.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

NOT_OPEN = "http://not-open.invalid"
"""The address of a client that is not open: nothing is sent there, as it has no connections."""


class AddressLease(Protocol):
    """A server that answers at `url` until `release`."""

    url: str

    def release(self) -> None:
        """Let go of the server. Any thread."""


@runtime_checkable
class LateAddress(Protocol):
    """A stand-in for an address among the arguments of a client, such as `pillarbox.models.Served`."""

    async def lease(self) -> AddressLease:
        """Have the server run, and its address. Raises what says that it cannot be had."""
