"""Makes the environment of a peer, `build/peers/NAME`, from `requirements/NAME.txt`. For the main thread."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.chunks import ROOT

FOLDER = ROOT / "build" / "peers"
REQUIREMENTS = Path(__file__).parent / "requirements"


class EnvironmentFailed(RuntimeError):
    """An environment that could not be made; its text is the reason."""


def python_of(
    name: str, say: Callable[[str], None], requirements: Path = REQUIREMENTS, environments: Path = FOLDER
) -> Path:
    """The Python of a peer's environment, made if its requirements have changed. Raises EnvironmentFailed."""
    folder = environments / name
    python = folder / "bin" / "python"
    wanted = (requirements / f"{name}.txt").read_text()
    made = folder / ".made"
    if made.exists() and made.read_text() == wanted:
        return python
    say(f"making the environment of {name}")
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    _run([*pip, "--requirement", str(requirements / f"{name}.txt")])
    made.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise EnvironmentFailed(said[-1] if said else f"{command[0]} ended with {done.returncode}")
