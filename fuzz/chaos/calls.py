"""The calls that the service has written down, read while the service still writes. For one thread."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

CALLER = "X-Caller"
"""The header in which a caller says its process and what in it calls: `PID-NAME`."""


@dataclass
class Call:
    """One call, as the service saw it. Times are seconds of the monotonic clock.

    caller: process and name of what called. outcome: "ok", "fail", "reset" (the service threw the client
    out), "gone" (the client left before it had the answer), or "open".
    """

    number: int
    key: int
    begin: float
    end: float = float("inf")
    outcome: str = "open"
    caller: str = ""

    @property
    def pid(self) -> int:
        """The caller's process; 0 where it has not said."""
        return int(self.caller.partition("-")[0] or 0)


class CallLog:
    """The calls of one service. `read` brings what has been written since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.calls: dict[int, Call] = {}
        self.answered: dict[int, float] = {}
        """The keys that were answered, in the order of, and with the times of, their first answers."""

    def read(self) -> None:
        """Read the whole lines that were not read yet."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._note(json.loads(line))

    def _note(self, line: dict[str, object]) -> None:
        number, at = line["call"], line["at"]
        assert isinstance(number, int) and isinstance(at, float)
        if "key" in line:
            key = line["key"]
            assert isinstance(key, int)
            self.calls[number] = Call(number, key, at, caller=str(line["caller"]))
            return
        call = self.calls[number]
        call.end, call.outcome = at, str(line["end"])
        if call.outcome == "ok":
            self.answered.setdefault(call.key, at)
