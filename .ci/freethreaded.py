"""Prints the path of a CPython without a GIL; run by `make test-freethreaded`.

The machine's own comes first: `python3.13t` or a later one on the PATH. Otherwise, where there is apt with a
Debian behind it, this builds the source package `python3.13` with `--disable-gil`, in build/freethreaded. apt
finds the package at the mirror that this machine uses, by lists of its own, so what the machine has installed
and listed stays as it is. Exits with status 1, and says why, when there is neither.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("python3.13t", "python3.14t", "python3.15t")
PACKAGE = "python3.13"
SUITE = "trixie"  # the Debian that has this package
HOME = Path(__file__).resolve().parent.parent / "build" / "freethreaded"
NO_GIL = "import sys, sysconfig; sys.exit(not sysconfig.get_config_var('Py_GIL_DISABLED'))"


def runs_without_gil(python: str) -> bool:
    """True for a free-threaded CPython; a name on the PATH may belong to a launcher that has none."""
    try:
        done = subprocess.run([python, "-c", NO_GIL], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def run(*command: str, **settings: str) -> str:
    """Runs a step of the build; its errors go where ours go."""
    environment = {**os.environ, **settings}
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    done = subprocess.run(
        command, cwd=HOME, env=environment, check=True, stdin=nothing, stdout=pipe, text=True
    )
    return done.stdout


def fetch_source() -> Path:
    """Downloads the source package, and unpacks what its authors published."""
    asked = ("Created-By: Packages", "Origin: Debian", "Label: Debian", "Component: main")
    mirrors = run("apt-get", "indextargets", "--format", "$(REPO_URI)", *asked).split()
    if not mirrors:
        raise SystemExit("apt knows no Debian mirror: put a python3.13t on the PATH")
    lists = HOME / "apt"
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (lists / folder).mkdir(parents=True, exist_ok=True)
    (lists / "sources.list").write_text(f"deb-src {mirrors[0]} {SUITE} main\n")
    (lists / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{lists}/sources.list";\n'
        'Dir::Etc::SourceParts "/nonexistent";\n'
        f'Dir::State "{lists}/state";\n'
        f'Dir::Cache "{lists}/cache";\n'
        # Otherwise apt downloads as a user who may not write here.
        'APT::Sandbox::User "";\n'
    )
    run("apt-get", "--quiet", "update", APT_CONFIG=f"{lists}/apt.conf")
    run("apt-get", "--quiet", "source", "--download-only", PACKAGE, APT_CONFIG=f"{lists}/apt.conf")
    archive = next(path for path in HOME.glob(f"{PACKAGE}_*.orig.tar.*") if path.suffix != ".asc")
    source = HOME / "source"
    source.mkdir()
    run("tar", "--extract", "--file", str(archive), "--directory", str(source), "--strip-components=1")
    return source


def build() -> str:
    """Builds and installs it below build/freethreaded; returns the path of the interpreter."""
    python = HOME / "bin" / "python3.13t"
    if runs_without_gil(str(python)):
        return str(python)
    if shutil.which("apt-get") is None:
        raise SystemExit(
            f"none of {', '.join(NAMES)} is on the PATH, and no apt-get is here to get its source"
        )
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    print(f"building a free-threaded CPython into {HOME}: some minutes", file=sys.stderr)
    source = str(fetch_source())
    configure = f'./configure --quiet --disable-gil --disable-test-modules --prefix="{HOME}"'
    make = f"make --quiet --jobs={os.cpu_count() or 1}"
    steps = f'cd "{source}" && {configure} && {make} && make --quiet install'
    run("sh", "-c", f'{{ {steps}; }} >"{HOME}/log" 2>&1')
    shutil.rmtree(source)
    if not runs_without_gil(str(python)):
        raise SystemExit(f"what was built does not run without a GIL: see {HOME}/log")
    return str(python)


def main() -> None:
    for name in NAMES:
        found = shutil.which(name)
        if found and runs_without_gil(found):
            print(found)
            return
    print(build())


if __name__ == "__main__":
    main()
