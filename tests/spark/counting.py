"""Calls that workers make, counted in a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any


class Counting:
    """Calls, each written to a file as one line of what it was called with."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, what: Any) -> None:
        with open(self.path, "a") as file:
            file.write(f"{what}\n")

    def calls(self) -> Counter[str]:
        return Counter(self.path.read_text().splitlines()) if self.path.exists() else Counter()
