"""Models beside the rows: in the worker's own process, or in a server on its host.

`LocalEmbeddings` and `Served` are picklable values that are given to an operator, or to a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.lazy_names import at_first_use

if TYPE_CHECKING:
    from pillarbox.models.errors import ModelUnavailable, ServerUnavailable
    from pillarbox.models.local_embeddings import LocalEmbeddings
    from pillarbox.models.served import Served

__all__ = ["LocalEmbeddings", "ModelUnavailable", "Served", "ServerUnavailable"]

_MODULES = {
    "errors": ["ModelUnavailable", "ServerUnavailable"],
    "local_embeddings": ["LocalEmbeddings"],
    "served": ["Served"],
}

if not TYPE_CHECKING:
    # At the first use: what serves needs no NumPy.
    __getattr__ = at_first_use(__name__, _MODULES)
