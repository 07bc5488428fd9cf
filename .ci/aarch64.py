"""Run the kernel's native stress and its contracts on aarch64 by qemu.

    python .ci/aarch64.py [native] [contracts]   both where neither is named

Called by `make aarch64`. Needs Debian's packages g++-aarch64-linux-gnu and qemu-user. The contracts, the
tests of `tests/kernel`, run on Debian's CPython for that processor, which apt downloads into build/aarch64 by
lists of its own, with the extension modules compiled for it. qemu emulates the instructions of a machine
whose memory is weaker than x86-64's, but runs them on this one: what the weaker order permits is not seen
here. The models of memory in `spec/orders.toml` are for that. Exits with 1 if a program or a test fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from debian import Lists  # noqa: E402
from wheels import NEITHER  # noqa: E402

from spec import headers  # noqa: E402

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
FOLDER = ROOT / "build" / "aarch64"
TIMEOUT_S = 600
PROGRAMS = (
    *(("inbox_stress", backend) for backend in ("lock-free", "mutex")),
    *(("mailbox_storm", "lock-free", str(producers)) for producers in (1, 2, 4, 8)),
    *(("queue_stress",), ("queue_sweep",), ("handover_stress",), ("slab_places",)),
)
"""Programs of tests/native, with their words."""

PYTHON = "python3.11"
SUITE = "bookworm"
"""The Debian that has this Python: its packages are what runs, whatever the machine has."""
PACKAGES = (PYTHON, f"lib{PYTHON}-dev", "libstdc++6")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "pytest-reportlog", "hypothesis", "psutil")
BROKEN_IN_QEMU = (
    "tests/kernel/test_kernel_fork.py::"
    "test_in_the_child_of_a_fork[new_objects_work_in_the_child_and_not_in_its_child]"
)
"""A child of a fork that starts a thread and forks again ends in an assertion of qemu's own (7.2)."""


def native() -> int:
    """Compile and run the programs; returns how many failed."""
    include = headers.for_tests(planted=False, traced=False, watched=False, seeded=())
    flags = ["-std=c++17", "-O2", "-pthread", "-static", f"-I{include}"]
    for name in dict.fromkeys(program[0] for program in PROGRAMS):
        source = ROOT / "tests" / "native" / f"{name}.cpp"
        subprocess.run([COMPILER, *flags, str(source), "-o", str(FOLDER / name)], check=True)
    failed = 0
    for name, *words in PROGRAMS:
        command = [EMULATOR, str(FOLDER / name), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        good = (done.returncode, done.stdout) == (0, "ok\n")
        failed += not good
        print(f"{name} {' '.join(words)}: {'ok' if good else done.stdout + done.stderr}", flush=True)
    print(f"{len(PROGRAMS) - failed} passed, {failed} failed")
    return failed


def system() -> Path:
    """A root folder with Debian's CPython for aarch64; downloaded once."""
    root = FOLDER / "root"
    if (root / "usr" / "bin" / PYTHON).exists():
        return root
    lists = Lists(FOLDER / "apt", "deb", SUITE, "arm64")
    words = ("--yes", "--no-install-recommends", "--download-only", "install", *PACKAGES)
    lists.apt_get(*words, folder=FOLDER)
    unpacked = FOLDER / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    for archive in sorted(lists.archives.glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", archive, unpacked], check=True)
    unpacked.rename(root)
    return root


def emulated(root: Path) -> Path:
    """A program that is the emulated Python, and that its `sys.executable` names: tests start it again."""
    program, real = root / "usr" / "bin" / "emulated-python", root / "usr" / "bin" / PYTHON
    program.write_text(f'#!/bin/sh\nexec {EMULATOR} -L "{root}" -0 "{program}" "{real}" "$@"\n')
    program.chmod(0o755)
    return program


def contracts() -> int:
    """Build the kernel for aarch64 and run its tests there; returns the exit status of pytest."""
    root, site, packages = system(), FOLDER / "site", FOLDER / "packages"
    headers_of_c = root / "usr" / "include"
    flags = f"-I{headers_of_c / PYTHON} -idirafter {headers_of_c}"
    build = {
        "CC": COMPILER,
        "CXX": COMPILER,
        "LDSHARED": f"{COMPILER} -shared",
        "LDCXXSHARED": f"{COMPILER} -shared",
        "CFLAGS": flags,
        "CXXFLAGS": flags,
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{PYTHON[6:].replace('.', '')}-aarch64-linux-gnu.so",
    }
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(ROOT / "pyruntime", site / "pillarbox", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "setup.py", "-q", "build_ext", f"--build-lib={site}"]
    command += [f"--build-temp={FOLDER / 'temp'}", f"--parallel={os.cpu_count() or 1}"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **build}, check=True)
    for path in [*(ROOT / "kernel").glob("*.py"), *(ROOT / "kernel").glob("*.pyi")]:
        shutil.copy(path, site / "pillarbox" / "kernel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--upgrade"]
    pip += [f"--target={packages}", f"--python-version={PYTHON[6:]}", "--only-binary=:all:"]
    pip += [*(f"--platform={name}" for name in PLATFORMS), "--constraint=constraints.txt", *TESTS]
    subprocess.run(pip, cwd=ROOT, check=True)
    variables = {**os.environ, "PYTHONPATH": f"{site}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"}
    pytest = [emulated(root), "-m", "pytest", "-q"]
    pytest += ["-p", "no:cacheprovider", "--hypothesis-profile", "quick", "-m", NEITHER, "tests/kernel"]
    pytest += [f"--deselect={BROKEN_IN_QEMU}"]
    return subprocess.run(pytest, cwd=ROOT, env=variables, check=False).returncode


def main() -> int:
    """Run the parts that are named; returns the exit status."""
    parts = {"native": native, "contracts": contracts}
    named = sys.argv[1:] or list(parts)
    if unknown := [name for name in named if name not in parts]:
        print(f"{', '.join(unknown)}: must be among {', '.join(parts)}")
        return 2
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if missing:
        print(f"not here: {', '.join(missing)}: apt-get install g++-aarch64-linux-gnu qemu-user")
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    return 1 if sum(parts[name]() for name in named) else 0


if __name__ == "__main__":
    sys.exit(main())
