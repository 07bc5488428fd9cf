"""Another state of the package, to be measured beside this one: a commit, or a checkout at another path.

A state is a folder `lib` with the package `pillarbox` in it, which goes in front of the path of a process. It
holds links into a checkout whose kernel is built in place; a commit is unpacked and built below
`build/beside`, once. All states run the *benchmarks* of this checkout, with the Python and the packages of
this environment, so what differs is the package alone. For the main thread.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.chunks import ROOT

FOLDER = ROOT / "build" / "beside"
KERNEL_SOURCES = ("kernel", "setup.py", "pyproject.toml")
"""Of what the compiled kernel is made."""


class StateFailed(RuntimeError):
    """A state that cannot be had; the text is the reason."""


@dataclass(frozen=True)
class State:
    """A state that can be measured. name: for tables. lib: the folder with its package."""

    name: str
    lib: Path

    @property
    def path(self) -> str:
        """The value of PYTHONPATH for its processes."""
        return os.pathsep.join([str(self.lib), str(ROOT)])


def here() -> State:
    """The checkout that this file is in, as it stands."""
    return State("here", linked(ROOT))


def beside(
    which: str,
    say: Callable[[str], None],
    states: Path = FOLDER,
    build: Callable[[str, Path], None] | None = None,
) -> State:
    """The state of a commit, or of the checkout at a path. Raises StateFailed.

    states: the folder of the states that are kept. build: builds the kernel of a commit in its checkout.
    """
    # A relative path says so: a branch may be called as a folder is.
    if which.startswith((".", "/", "~")):
        return State(which, linked(Path(which).expanduser().resolve(), states))
    commit = _git("rev-parse", "--verify", "--end-of-options", f"{which}^{{commit}}").decode().strip()
    folder = states / commit[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            say(f"building {which} ({commit[:12]}) in {folder}")
            _unpack(commit, folder / "checkout")
            (build or _build)(commit, folder / "checkout")
            (folder / "made").touch()
    return State(which, linked(folder / "checkout", states))


def linked(checkout: Path, states: Path = FOLDER) -> Path:
    """The folder with the package of a checkout. Raises StateFailed if its kernel is not built."""
    if not list(checkout.glob("kernel/mailbox.*.so")):
        raise StateFailed(f"{checkout}: no checkout whose kernel is built; run `make build` there")
    lib = states / "links" / str(checkout).strip(os.sep).replace(os.sep, "-")
    package = lib / "pillarbox"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {each.name: each for each in (checkout / "pyruntime").iterdir() if each.name != "__pycache__"}
    wanted["kernel"] = checkout / "kernel"
    for link in package.iterdir():
        if link.is_symlink() and link.name not in wanted:
            link.unlink()
    for name, target in wanted.items():
        # Another process may do the same.
        with suppress(FileExistsError):
            (package / name).symlink_to(target)
    return lib


def _unpack(commit: str, checkout: Path) -> None:
    shutil.rmtree(checkout, ignore_errors=True)
    # Not a worktree of git's: nothing is to be left in the repository when `build` is deleted.
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as files:
        files.extractall(checkout, filter="data")


def _build(commit: str, checkout: Path) -> None:
    same = subprocess.run(["git", "diff", "--quiet", commit, "--", *KERNEL_SOURCES], cwd=ROOT, check=False)
    if same.returncode == 0:
        # The kernel of this checkout is made of the same sources.
        for built in (ROOT / "kernel").glob("*.so"):
            shutil.copy2(built, checkout / "kernel")
        return
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace", f"--parallel={os.cpu_count() or 1}"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise StateFailed(f"{commit} cannot be built:\n{done.stdout}{done.stderr}")


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        raise StateFailed(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout
