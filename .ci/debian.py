"""Debian's packages of any release and processor, by lists of their own: the machine's stay as they are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def mirror() -> str:
    """The mirror that this machine uses. Raises SystemExit if apt knows none."""
    asked = ("Created-By: Packages", "Origin: Debian", "Label: Debian", "Component: main")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *asked]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    if not found:
        raise SystemExit("apt knows no Debian mirror")
    return found[0]


class Lists:
    """Lists of the packages of one release, in `folder`, by which `apt_get` works. For one thread.

    kind: "deb" for packages, "deb-src" for sources. processor: Debian's name of another one than this
    machine's, such as "arm64"; its packages are looked at as if none was installed.
    """

    def __init__(self, folder: Path, kind: str, suite: str, processor: str | None = None) -> None:
        for each in ("state/lists/partial", "cache/archives/partial"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        about = f"signed-by={KEYS}" + (f" arch={processor}" if processor else "")
        (folder / "sources.list").write_text(f"{kind} [{about}] {mirror()} {suite} main\n")
        lines = [
            f'Dir::Etc::SourceList "{folder}/sources.list";',
            'Dir::Etc::SourceParts "/nonexistent";',
            f'Dir::State "{folder}/state";',
            f'Dir::Cache "{folder}/cache";',
            # Otherwise apt downloads as a user who may not write here.
            'APT::Sandbox::User "";',
        ]
        if processor is not None:
            (folder / "status").touch()
            lines += [
                f'Dir::State::status "{folder}/status";',
                f'APT::Architecture "{processor}";',
                f'APT::Architectures "{processor}";',
            ]
        (folder / "apt.conf").write_text("\n".join(lines) + "\n")
        self.archives = folder / "cache" / "archives"
        """The folder of downloaded packages."""
        self._variables = {**os.environ, "APT_CONFIG": f"{folder}/apt.conf"}
        self.apt_get("update", folder=folder)

    def apt_get(self, *words: str, folder: Path) -> None:
        """Run apt-get in a folder. Raises CalledProcessError if it fails; it has printed why."""
        nothing = subprocess.DEVNULL
        command = ["apt-get", "--quiet=2", *words]
        subprocess.run(command, cwd=folder, env=self._variables, check=True, stdin=nothing, stdout=nothing)
