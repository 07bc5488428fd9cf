"""A small disk for the ledger: a real file system of a few megabytes, in memory, that can be filled up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType

BLOCK = bytes(4096)


class SmallDisk:
    """A tmpfs of `size` bytes, from `__enter__` to `__exit__`. `reason` says why there is none, or is ""."""

    def __init__(self, folder: Path, size: int = 8 * 2**20) -> None:
        self.folder = folder
        self._size = size
        self._ballast = folder / "ballast"
        self.reason = ""

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.reason = done.stderr.strip() if done.returncode else ""
        except FileNotFoundError as error:
            self.reason = str(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.reason:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> int:
        """Take what is free; how many bytes that were. A writer may free nothing that it has."""
        file = os.open(self._ballast, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        written = 0
        try:
            while True:
                written += os.write(file, BLOCK)
        except OSError:
            return written
        finally:
            os.close(file)

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink(missing_ok=True)
