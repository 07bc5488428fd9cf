"""Seeds of what is drawn in tests and in long suites: the same for the same commit, or for the same day.

The standard library only: `.ci/steps.py` runs without the environment. Any thread.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from datetime import date, datetime, timezone
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "PILLARBOX_SEED"
"""The variable of the environment that gives the seed, as `.ci/run` and `make long` do."""
END = 10**6
"""Seeds are below this: they are typed by hand."""
NO_COMMIT = "no commit"
"""The source of the seed where there is no checkout, as in an unpacked sdist."""


def commit() -> str:
    """Return the hash of the commit that is checked out, or `NO_COMMIT`."""
    try:
        shown = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return NO_COMMIT
    return shown.stdout.strip()


def commit_seed(name: str, environment: Mapping[str, str] = os.environ) -> int:
    """Return the seed of what is called `name`: that of the environment, or one of the commit.

    Whoever draws by it prints it. Raises ValueError for a variable that is not a number.
    """
    given = environment.get(VARIABLE)
    if given is not None:
        return int(given)
    return int.from_bytes(sha256(f"{commit()} {name}".encode()).digest()[:8], "big") % END


def date_seed(today: date | None = None) -> int:
    """Return the seed of a long suite: the date in UTC, as in 20261128."""
    day = today or datetime.now(timezone.utc).date()
    return day.year * 10_000 + day.month * 100 + day.day
