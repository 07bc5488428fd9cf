"""The ledger: every finished call is kept, durably, before its row is emitted; no restart makes it again.

Files that any reader of Arrow streams opens, checked by checksums. `pillarbox ledger` looks at
them. Importing this package does not import pyarrow.
"""

from pillarbox.ledger.compaction import Compacted, compact
from pillarbox.ledger.errors import (
    Damage,
    LedgerBusyError,
    LedgerClosedError,
    LedgerConflictError,
    LedgerError,
    LedgerFormatError,
    LedgerFullError,
    LedgerValueError,
    LedgerWarning,
)
from pillarbox.ledger.expiry import expire, expire_batches
from pillarbox.ledger.keys import KeyMaker, RowIdentity, config_hash, execution_id, fingerprint
from pillarbox.ledger.lease import Lease
from pillarbox.ledger.ledger import Ledger
from pillarbox.ledger.reader import LedgerReader
from pillarbox.ledger.records import Origin, Record
from pillarbox.ledger.scope import Scope
from pillarbox.ledger.shared import shared_reader
from pillarbox.ledger.writer import Commit, LedgerWriter

__all__ = [
    "Commit",
    "Compacted",
    "Damage",
    "KeyMaker",
    "Lease",
    "Ledger",
    "LedgerBusyError",
    "LedgerClosedError",
    "LedgerConflictError",
    "LedgerError",
    "LedgerFormatError",
    "LedgerFullError",
    "LedgerReader",
    "LedgerValueError",
    "LedgerWarning",
    "LedgerWriter",
    "Origin",
    "Record",
    "RowIdentity",
    "Scope",
    "compact",
    "config_hash",
    "execution_id",
    "expire",
    "expire_batches",
    "fingerprint",
    "shared_reader",
]
