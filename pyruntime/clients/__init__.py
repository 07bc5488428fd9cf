"""Clients of services that are given to the operator as functions: lookups over HTTP, embeddings, chats.

Each client is a picklable value that opens its connections on the loop of the task that calls it. A client
may be given wherever a function is given, with all options of the operator; it does not retry by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pillarbox.clients.chat import Chat
    from pillarbox.clients.embeddings import Embeddings
    from pillarbox.clients.http_lookup import HttpLookup
    from pillarbox.clients.prices import Price
    from pillarbox.clients.secret import Secret
    from pillarbox.clients.transport import Http

__all__ = ["Chat", "Embeddings", "Http", "HttpLookup", "Price", "Secret"]

_HOMES = {
    "Chat": "chat",
    "Embeddings": "embeddings",
    "Http": "transport",
    "HttpLookup": "http_lookup",
    "Price": "prices",
    "Secret": "secret",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Imported at the first use: each client has extras of its own.
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"pillarbox.clients.{_HOMES[name]}"), name)
        return value
