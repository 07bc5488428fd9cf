"""Other builds of the kernel, each in its own folder: traced, with defects and an oracle; under sanitizers.

`python -m spec.variants NAME` makes one if its sources have changed and prints the folder, which goes in
front of the path: `PYTHONPATH=$(python -m spec.variants checked) python ...`. Any process may call; one
builds, others wait.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import headers
from .defects import Seeded, with_one

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "variants"

SWITCHES: dict[str, dict[str, str]] = {
    "checked": {},  # see `switches`
    "address": {"PILLARBOX_SANITIZE": "address,undefined"},
    "thread": {"PILLARBOX_SANITIZE": "thread"},
}


def switches(name: str) -> dict[str, str]:
    """The environment of setup.py for a variant; the folder of headers that it names is made."""
    if name != "checked":
        return SWITCHES[name]
    return {"PILLARBOX_INCLUDE": str(headers.for_tests(planted=True, traced=True))}


def fingerprint(name: str, folders: Sequence[str] = ("kernel", "pyruntime")) -> str:
    """A digest of what a build is made of: these folders, setup.py with its switches, and this Python."""
    digest = hashlib.sha256(f"{sys.version} {switches(name)}".encode())
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
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
    stamp, compiled = folder / "fingerprint", folder / "compiled"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = fingerprint(name)
        if not stamp.exists() or stamp.read_text() != wanted:
            kernel = fingerprint(name, ["kernel"])
            if compiled.exists() and compiled.read_text() == kernel:
                copy_runtime(folder / "lib" / "pillarbox")
            else:
                build(name, folder)
                compiled.write_text(kernel)
            stamp.write_text(wanted)
    return folder / "lib"


def copy_runtime(package: Path) -> None:
    """Brings what is not compiled up to date: all of `package` but the kernel is made anew."""
    for path in package.iterdir():
        if path.is_dir() and path.name != "kernel":
            shutil.rmtree(path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pyruntime", package, ignore=ignored, dirs_exist_ok=True)


def with_defect(defect: Seeded | None) -> Path:
    """The folder of a build that can have the defect: `checked`, or a copy of it in which it is planted.

    In the copy the defect is there for good; what of it is in headers PILLARBOX_DEFECT plants. Any process
    may call. RuntimeError: no build. DefectError: it has no place.
    """
    lib = built("checked")
    if defect is None or not defect.copied:
        return lib
    texts = {file: with_one(file, (ROOT / file).read_text(), defect) for file in defect.copied}
    wanted = hashlib.sha256(f"{fingerprint('checked')} {sorted(texts.items())}".encode()).hexdigest()
    folder = FOLDER / "defects" / defect.name
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "fingerprint"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            plant(texts, lib.parent, folder)
            stamp.write_text(wanted)
    return folder / "lib"


def plant(texts: dict[str, str], usual: Path, folder: Path) -> None:
    """Copies a build from `usual` into `folder`, with other texts of files of the project."""
    for part in ("lib", "temp", "source"):
        shutil.rmtree(folder / part, ignore_errors=True)
    if all(file.endswith(".py") for file in texts):
        # Python writes bytecode beside a file anew and never into it: a hundred such copies share theirs.
        shutil.copytree(usual / "lib", folder / "lib", copy_function=os.link)
        for file, text in texts.items():
            package = Path("pillarbox", *Path(file).parts[file.startswith("pyruntime/") :])
            (folder / "lib" / package).unlink()
            (folder / "lib" / package).write_text(text)
        return
    shutil.copytree(usual / "lib", folder / "lib")
    # What is compiled is compiled anew where a source is newer: in a copy of the sources, with their times.
    shutil.copytree(usual / "temp", folder / "temp")
    for part in ("kernel", "pyruntime"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / part, folder / "source" / part, ignore=ignored)
    for path in (*ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("LICENSE*"), ROOT / "setup.py"):
        shutil.copy2(path, folder / "source" / path.name)
    for file, text in texts.items():
        (folder / "source" / file).write_text(text)
    build("checked", folder, folder / "source")


def build(name: str, folder: Path, source: Path | None = None) -> None:
    """Runs setup.py with a variant's switches: all anew, or what has changed in a copy of the sources."""
    command = [sys.executable, "setup.py", "-q", "build", f"--build-base={folder / 'temp'}"]
    command += [f"--build-lib={folder / 'lib'}", f"--parallel={os.cpu_count() or 1}"]
    command += ["--force"] if source is None else []
    done = subprocess.run(
        command,
        cwd=source or ROOT,
        env=os.environ | switches(name) | {"CFLAGS": "-g0"},
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
