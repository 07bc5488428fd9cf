"""Other builds of the kernel: traced, with defects to plant, under a sanitizer. Each in a folder of its own.

`python -m spec.variants NAME` makes one if its sources have changed and prints the folder, which goes in
front of the path: `PYTHONPATH=$(python -m spec.variants checked) python ...`. Any process may call; one
builds, others wait.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "variants"

SWITCHES = {
    "checked": {"PILLARBOX_TRACE": "1", "PILLARBOX_DEFECTS": "1"},
    "address": {"PILLARBOX_SANITIZE": "address,undefined"},
    "thread": {"PILLARBOX_SANITIZE": "thread"},
}


def fingerprint() -> str:
    """What a build is made of: every source of the package, setup.py, and this Python."""
    digest = hashlib.sha256(sys.version.encode())
    paths = [path for folder in ("kernel", "pyruntime") for path in (ROOT / folder).rglob("*")]
    for path in sorted([*paths, ROOT / "setup.py", ROOT / "pyproject.toml"]):
        if path.suffix in {".py", ".pyi", ".pyx", ".pxd", ".h", ".toml"}:
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def built(name: str) -> Path:
    """The folder of a variant, built if need be. ValueError: an unknown name. RuntimeError: no build."""
    if name not in SWITCHES:
        raise ValueError(f"a variant is one of {', '.join(SWITCHES)}, not {name!r}")
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "fingerprint"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = fingerprint()
        if not stamp.exists() or stamp.read_text() != wanted:
            build(name, folder)
            stamp.write_text(wanted)
    return folder / "lib"


def build(name: str, folder: Path) -> None:
    """Runs setup.py with the switches of the variant."""
    command = [sys.executable, "setup.py", "-q", "build", f"--build-base={folder / 'temp'}"]
    command += [f"--build-lib={folder / 'lib'}", "--force", f"--parallel={os.cpu_count() or 1}"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | SWITCHES[name] | {"CFLAGS": "-g0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the build of the variant {name!r} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"python -m spec.variants {' | '.join(SWITCHES)}")
    print(built(sys.argv[1]))
