"""Seeds of what is drawn in tests and in long suites: the same for the same commit, or for the same day.

The standard library only: `.ci/steps.py` runs without the environment. Any thread.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from datetime import date, datetime, timezone
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "PILLARBOX_SEED"
"""The variable of the environment that gives the seed, as `.ci/run` and `make long` do."""
END = 10**6
"""Seeds of commits are below this: they are typed by hand."""
VERSION = re.compile(r'^version = "(.+)"$', re.MULTILINE)
"""The package's version in `pyproject.toml`."""


def commit(root: Path = ROOT) -> str:
    """Return the hash of the commit that is checked out; in an unpacked sdist the package's version."""
    try:
        shown = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        found = VERSION.search((root / "pyproject.toml").read_text())
        return f"version {found[1]}" if found else "no version"
    return shown.stdout.strip()


def commit_seed(name: str, environment: Mapping[str, str] = os.environ) -> int:
    """Return the seed of what is called `name`: that of the environment, or one of the commit.

    Whoever draws by it prints it. Raises ValueError for a variable that is not a number.
    """
    given = environment.get(VARIABLE)
    if given is not None:
        return int(given)
    return int.from_bytes(sha256(f"{commit()} {name}".encode()).digest()[:8], "big") % END


def words_for_hypothesis(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return words for pytest that have searches draw by the seed of the environment, if it has one."""
    return [f"--hypothesis-seed={environment[VARIABLE]}"] if VARIABLE in environment else []


def date_seed(today: date | None = None) -> int:
    """Return the seed of a long suite: the date in UTC, as in 20261128."""
    day = today or datetime.now(timezone.utc).date()
    return day.year * 10_000 + day.month * 100 + day.day
