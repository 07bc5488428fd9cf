"""The shared side of a mailbox among threads that no interpreter lock orders; once under a sanitizer."""

import shutil
import subprocess
from pathlib import Path

import pytest

import pillarbox.kernel
from pillarbox.kernel import BACKENDS

INCLUDE = Path(pillarbox.kernel.__file__).resolve().parent / "include"
STRESS = Path(__file__).parents[1] / "native" / "inbox_stress.cpp"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def compiled(source: Path, program: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    assert COMPILER is not None
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [COMPILER, "-std=c++17", "-O2", "-g", "-pthread", *warnings, *flags, f"-I{INCLUDE}"]
    return subprocess.run(
        [*command, str(source), "-o", str(program)], capture_output=True, text=True, timeout=100, check=False
    )


def run(program: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(program), *words], capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.skipif(COMPILER is None or not INCLUDE.exists(), reason="no C++ compiler or no headers")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sanitizer", ["none", "thread"])
def test_the_inbox_keeps_its_promises_among_native_threads(
    sanitizer: str, backend: str, tmp_path: Path
) -> None:
    flags = [] if sanitizer == "none" else [f"-fsanitize={sanitizer}"]
    if flags:
        trivial = tmp_path / "trivial.cpp"
        trivial.write_text("int main() { return 0; }\n")
        there = compiled(trivial, tmp_path / "trivial", *flags).returncode == 0
        if not there or run(tmp_path / "trivial").returncode != 0:
            pytest.skip(f"the {sanitizer} sanitizer does not work here")
    built = compiled(STRESS, tmp_path / "stress", *flags)
    assert built.returncode == 0, built.stderr
    done = run(tmp_path / "stress", backend)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
