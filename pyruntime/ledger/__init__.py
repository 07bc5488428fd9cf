"""The ledger: every finished call is kept, durably, before its row is emitted; no restart makes it again.

Files that any reader of Arrow streams opens, checked by checksums. `pillarbox ledger` looks at
them. Importing this package does not import pyarrow.
"""

from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.keys import KeyMaker, Scope
from pillarbox.ledger.ledger import Cache, Ledger

__all__ = ["Cache", "KeyMaker", "Ledger", "LedgerError", "Scope"]
