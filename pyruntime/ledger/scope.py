"""Whose calls they are: run, operator and configuration, and the folder that they have in a ledger.

Folders are named as Hive names partitions (`run=.../batch=.../uid=.../config=...`), which people and tools
know. Values without state: safe in any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from pillarbox.ledger.keys import config_hash
from pillarbox.validate import check_int, check_text

NO_BATCH = "none"
LONGEST = 200
"""Characters of a name, as it is written in a path: file systems allow 255 with what is before it."""


@dataclass(frozen=True, order=True)
class Scope:
    """Where a finished call belongs. Results are found again under the same scope only.

    run: a name given by the user, or the id of a streaming query, which is the same after a restart.
    uid: the name of the operator.
    config: 16 hexadecimal digits for what of its configuration decides about results (`config_hash`).
    batch: the number of the micro-batch; None outside of streams.
    """

    run: str
    uid: str
    config: str = "0" * 16
    batch: int | None = None

    def __post_init__(self) -> None:
        for name in ("run", "uid", "config"):
            text = check_text(name, getattr(self, name))
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{name}={text!r}: must be text that has a form in UTF-8") from None
            if len(quoted(text)) > LONGEST:
                raise ValueError(f"{name}={text!r}: may have {LONGEST} characters as it is written in a path")
        if self.batch is not None:
            check_int("batch", self.batch, 0, 2**63 - 1)

    @classmethod
    def of(
        cls, run: str, uid: str, config: Mapping[str, Any] | None = None, batch: int | None = None
    ) -> Scope:
        """The scope of an operator with this configuration: a mapping of what decides about results."""
        return cls(run, uid, config_hash(config), batch)

    @property
    def path(self) -> str:
        """Its folder below the ledger's."""
        batch = NO_BATCH if self.batch is None else str(self.batch)
        return f"run={quoted(self.run)}/batch={batch}/uid={quoted(self.uid)}/config={quoted(self.config)}"

    @property
    def about(self) -> dict[str, str]:
        """What the header of a segment says of it."""
        return {"run": self.run, "uid": self.uid, "config": self.config, "batch": str(self.batch)}

    @classmethod
    def from_path(cls, path: str) -> Scope | None:
        """The scope that has this folder; None if none has."""
        parts = [part.partition("=") for part in path.strip("/").split("/")]
        if [name for name, _, _ in parts] != ["run", "batch", "uid", "config"]:
            return None
        run, batch, uid, config = (value for _, _, value in parts)
        if batch != NO_BATCH and not batch.isdecimal():
            return None
        try:
            return cls(unquote(run), unquote(uid), unquote(config), None if batch == NO_BATCH else int(batch))
        except ValueError:
            return None

    def __str__(self) -> str:
        batch = "" if self.batch is None else f" batch {self.batch}"
        return f"{self.run}{batch} {self.uid} ({self.config})"


def quoted(text: str) -> str:
    """`text` as a part of a path: letters, digits and `_-~` stay, and a dot except in front."""
    plain = quote(text, safe="")
    return "%2E" + plain[1:] if plain.startswith(".") else plain
