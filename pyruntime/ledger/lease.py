"""Which of several attempts of a task should call, while the others wait for its results.

A file with the holder's name, whose time of change the holder renews. It is only about money: two holders at
a time do no harm, their records are ordered by the folder's lock. Who waits measures by its own monotonic
clock for how long nothing was renewed, so that clocks need not agree. Idea: Gray and Cheriton, "Leases",
1989. Thread-safe.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from contextlib import suppress

BEAT = 1.0
"""Seconds between two renewals."""
PATIENCE = 5.0
"""Seconds without a renewal after which a holder is taken for dead."""
LONGEST = 60.0
"""Seconds after which a holder is taken for hung, although it renews."""


class Lease:
    """The right to call for what `name` means, in a folder that is there. Any thread.

    name: the same for all attempts of a task, such as the key of its first row.
    patience, longest: seconds, as above.
    """

    def __init__(
        self, folder: str, name: str, *, patience: float = PATIENCE, longest: float = LONGEST
    ) -> None:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        self.path = os.path.join(folder, f".lease-{digest}")
        self._owner = secrets.token_hex(16)
        self._patience = patience
        self._longest = longest
        self._seen: tuple[str, int] | None = None
        self._seen_at = self._first_at = 0.0

    def acquire(self) -> bool:
        """Try to get the lease, or to take it over; never waits. True if this attempt should call.

        Ask again from time to time while it is False, and look for the holder's results in between.
        """
        # spec: Ledger!Acquire
        with suppress(FileExistsError):
            file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            try:
                os.write(file, self._owner.encode())
            finally:
                os.close(file)
            return True
        held = self._look()
        if held is None:
            return False
        if held[0] == self._owner:
            return True
        now = time.monotonic()
        if self._seen is None or self._seen[0] != held[0]:
            self._first_at = now
        if held != self._seen:
            self._seen, self._seen_at = held, now
        if now - self._seen_at < self._patience and now - self._first_at < self._longest:
            return False
        # spec: Ledger!TakeOver
        part = f"{self.path}.{self._owner}"
        with open(part, "w") as new:
            new.write(self._owner)
        os.replace(part, self.path)
        return True

    def beat(self) -> bool:
        """Renew it; False if it is another's by now. About every `BEAT` seconds."""
        held = self._look()
        if held is None or held[0] != self._owner:
            return False
        with suppress(OSError):
            os.utime(self.path)
        return True

    def release(self) -> None:
        """Let others call at once, if it is still this attempt's."""
        held = self._look()
        if held is not None and held[0] == self._owner:
            with suppress(OSError):
                os.unlink(self.path)

    def _look(self) -> tuple[str, int] | None:
        """Owner and time of the last renewal; None if nobody holds it."""
        try:
            with open(self.path) as file:
                return file.read(), os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return None
