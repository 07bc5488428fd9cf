"""Takes in the frames of a scope's segments, as these grow, and says which parts are damaged.

A `LedgerReader` guards them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from pillarbox.ledger.errors import Damage, LedgerWarning
from pillarbox.ledger.folders import Folder
from pillarbox.ledger.format import ForeignSegmentError, Frame, scan
from pillarbox.ledger.local_folder import SUFFIX


class DamageLog:
    """The damaged parts of a folder's segments, each reported once with a `LedgerWarning`."""

    __slots__ = ("_path", "found")

    def __init__(self, path: str) -> None:
        self._path = path
        self.found: list[Damage] = []

    def report(self, damage: Damage) -> None:
        """Keep a part that is not trusted, and warn of it the first time."""
        if damage not in self.found:
            self.found.append(damage)
            warnings.warn(LedgerWarning(f"{self._path}: {damage}. Its calls are made again"), stacklevel=2)


class Segments:
    """The segments of a folder as far as they have been read.

    owner: that of the scope, for its frames. add: takes each whole frame, with its keys. report: takes
    damage, but for the ends of segments, where somebody may be writing.
    """

    __slots__ = ("_add", "_folder", "_foreign", "_owner", "_report", "_scanned", "_sizes", "_tails")

    def __init__(
        self,
        folder: Folder,
        owner: str,
        add: Callable[[Frame, bytes], None],
        report: Callable[[Damage], None],
    ) -> None:
        self._folder = folder
        self._owner = owner
        self._add = add
        self._report = report
        self._sizes: dict[str, int] = {}
        self._scanned: dict[str, int] = {}
        self._tails: dict[str, Damage] = {}
        self._foreign: set[str] = set()

    def open_tails(self) -> list[Damage]:
        """The damaged ends of segments that nobody has open any more."""
        return [tail for name, tail in self._tails.items() if not self._folder.is_open(name)]

    def has_lost(self, sizes: Mapping[str, int]) -> bool:
        """Return True if a segment that was read is not among these."""
        return not self._sizes.keys() <= sizes.keys()

    def has_changed(self, name: str, size: int) -> bool:
        """Return True if the segment had another size when it was read, or was not."""
        return size != self._sizes.get(name)

    def scan(self, name: str, size: int) -> None:
        """Take in what a segment has since the last time. Raises FileNotFoundError if it has gone."""
        if name in self._foreign:
            return
        try:
            self._scan_own(name, size)
        except ForeignSegmentError as error:
            # Copied or moved there: what it says is about other rows.
            self._foreign.add(name)
            self._report(Damage(name, 0, size, f"belongs to {error} and is not believed here", False))
        self._sizes[name] = size

    def take_in(self, frame: Frame, keys: bytes, is_first: bool) -> None:
        """Know a frame that was just appended; is_first: of those of its commit."""
        known = self._scanned.get(frame.segment)
        if known == frame.begin or (known is None and is_first):
            self._tails.pop(frame.segment, None)
            self._add(frame, keys)
            self._scanned[frame.segment] = self._sizes[frame.segment] = frame.end

    def _scan_own(self, name: str, size: int) -> None:
        found = scan(
            lambda offset, length: self._folder.read(name, offset, length),
            size,
            name,
            name[: -len(SUFFIX)],
            self._scanned.get(name, 0),
            self._owner,
        )
        self._tails.pop(name, None)
        for item in found:
            if isinstance(item, Damage):
                if item.is_tail:
                    # It may be what somebody is writing now.
                    self._tails[name] = item
                    break
                self._report(item)
            else:
                self._add(*item)
                self._scanned[name] = item[0].end
