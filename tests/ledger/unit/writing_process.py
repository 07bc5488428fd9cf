"""A process that keeps results until it is killed, and says which are durable. A program for the tests.

Arguments: location, first key, who it is (the value of each result). Writes the number of each durable
result, or of each that another had kept, with its value, to stdout: `key value`.
"""

from __future__ import annotations

import os
import random
import sys
import time

from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.writer import Commit
from tests.ledger.unit.segments import key

SCOPE = Scope("run", "uid")


def main(location: str, first: int, who: str) -> None:
    said = first

    def commit(done: Commit) -> None:
        nonlocal said
        lines = []
        while said < first + done.through:
            adopted = done.adopted.get(said - first + 1)
            lines.append(f"{said} {who if adopted is None else adopted.value}\n")
            said += 1
        # In one write, so that a kill leaves whole lines.
        os.write(1, "".join(lines).encode())

    writer = Ledger(location, loss_window=0.004, commit_rows=20).writer(SCOPE, on_commit=commit)
    number = first
    dice = random.Random(f"{first} {who}")
    while True:
        writer.append(key(number), who)
        number += 1
        if writer.is_behind or dice.random() < 0.1:
            time.sleep(0.001)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
