"""Prints the path of a CPython of one version: `python .ci/cpython.py 3.13t`; "t" for one without a GIL.

`make test-freethreaded` and `make wheels` run it. The machine's own come first: those on the PATH, of pyenv,
and built here before. Otherwise, where there is apt with a Debian behind it, this builds the source package
of that version, in build/cpython-VERSION. apt finds the package at the mirror that this machine uses, by
lists of its own, so the installed and listed packages of the machine stay as they are. Exits with status 1,
and names the reason, when there is neither.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from debian import Lists

BUILD = Path(__file__).resolve().parent.parent / "build"
SUITES = ("trixie", "sid")
"""Releases of Debian whose sources are looked at, the stable one first."""
IDENTITY = (
    "import sys, sysconfig; v = sys.version_info; "
    "free = 't' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''; "
    "print(sys.implementation.name, f'{v[0]}.{v[1]}{free}')"
)


def is_of(python: Path, version: str) -> bool:
    """True for a CPython of this version that runs; a name on the PATH may be that of a launcher only."""
    try:
        done = subprocess.run(
            [python, "-c", IDENTITY], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == f"cpython {version}"


def candidates(version: str) -> Iterator[Path]:
    """The places where a Python of this version may be, the PATH first, then pyenv's versions."""
    found = shutil.which(f"python{version}")
    if found:
        yield Path(found)
    pyenv = shutil.which("pyenv")
    if pyenv:
        home = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False).stdout.strip()
        yield from sorted(Path(home, "versions").glob(f"*/bin/python{version}"), reverse=True)
    yield from BUILD.glob(f"*/bin/python{version}")


def interpreter(version: str) -> Path | None:
    """A CPython of this version that is here; None for none."""
    return next((path for path in candidates(version) if is_of(path, version)), None)


def run(*command: str) -> None:
    """Runs a step of the build; its errors go where ours go."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def fetch_source(home: Path, package: str) -> Path:
    """Downloads the source package, and unpacks the archive that its authors published."""
    for suite in SUITES:
        try:
            Lists(home / "apt", "deb-src", suite).apt_get("source", "--download-only", package, folder=home)
            break
        except subprocess.CalledProcessError:
            # This release has no such package, or its mirror does not serve it; apt has printed which.
            continue
    else:
        raise SystemExit(f"{package}: no source in Debian's {', '.join(SUITES)}: put one on the PATH")
    archive = next(path for path in home.glob(f"{package}_*.orig.tar.*") if path.suffix != ".asc")
    source = home / "source"
    source.mkdir()
    run("tar", "--extract", "--file", str(archive), "--directory", str(source), "--strip-components=1")
    return source


def build(version: str) -> Path:
    """Builds and installs it below build/cpython-VERSION; returns the path of the interpreter."""
    if shutil.which("apt-get") is None:
        raise SystemExit(f"no python{version} is here, nor an apt-get to get its source")
    home = BUILD / f"cpython-{version}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    print(f"building CPython {version} into {home}: some minutes", file=sys.stderr)
    source = fetch_source(home, f"python{version.removesuffix('t')}")
    gil = "--disable-gil " if version.endswith("t") else ""
    configure = f'./configure --quiet {gil}--disable-test-modules --prefix="{home}"'
    make = f"make --quiet --jobs={os.cpu_count() or 1}"
    steps = f'cd "{source}" && {configure} && {make} && make --quiet install'
    run("sh", "-c", f'{{ {steps}; }} >"{home}/log" 2>&1')
    shutil.rmtree(source)
    python = home / "bin" / f"python{version}"
    if not is_of(python, version):
        raise SystemExit(f"the new interpreter does not run as CPython {version}: see {home}/log")
    return python


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit('one version, such as "3.14" or "3.13t"')
    print(interpreter(sys.argv[1]) or build(sys.argv[1]))


if __name__ == "__main__":
    main()
