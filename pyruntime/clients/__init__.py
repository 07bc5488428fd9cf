"""Clients of services that are given to the operator as functions: lookups over HTTP, embeddings, chats.

Each client is a picklable value that opens its connections on the loop of the task that calls it. A client
may be given wherever a function is given, with all options of the operator; it does not retry by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.lazy_names import at_first_use

if TYPE_CHECKING:
    from pillarbox.clients.chat import Chat
    from pillarbox.clients.embeddings import Embeddings
    from pillarbox.clients.http_lookup import HttpLookup
    from pillarbox.clients.images import Images
    from pillarbox.clients.language import Language
    from pillarbox.clients.prices import Price
    from pillarbox.clients.rerank import Rerank
    from pillarbox.clients.rerank_language import RerankLanguage
    from pillarbox.clients.secret import Secret
    from pillarbox.clients.transport import Http
    from pillarbox.clients.vector_language import VectorLanguage

__all__ = [
    "Chat",
    "Embeddings",
    "Http",
    "HttpLookup",
    "Images",
    "Language",
    "Price",
    "Rerank",
    "RerankLanguage",
    "Secret",
    "VectorLanguage",
]

_MODULES = {
    "chat": ["Chat"],
    "embeddings": ["Embeddings"],
    "http_lookup": ["HttpLookup"],
    "images": ["Images"],
    "language": ["Language"],
    "prices": ["Price"],
    "rerank": ["Rerank"],
    "rerank_language": ["RerankLanguage"],
    "secret": ["Secret"],
    "transport": ["Http"],
    "vector_language": ["VectorLanguage"],
}

if not TYPE_CHECKING:
    # At the first use: each client has extras of its own.
    __getattr__ = at_first_use(__name__, _MODULES)
