"""Runs tests with a build of the kernel under a sanitizer of the compiler.

    python -m spec.sanitize thread | address [WORDS OF PYTEST...]

Called by `make sanitize`. The sanitizer's library has to be loaded before the interpreter, so this needs a
compiler that knows where it is (`gcc -print-file-name`). Python's lock hides races between Python threads;
`tests/native` has threads that it does not order.
"""

import os
import subprocess
import sys
from pathlib import Path

from . import graph, tlc
from .native import REPORTED
from .seeds import words_for_hypothesis
from .variants import ROOT, built

# What runs without Spark, whose Java does not start with the library of a sanitizer.
TESTS = ["tests/kernel", "tests/mailbox", "tests/aio", "tests/testing", "tests/spec/test_conformance.py"]
LIBRARIES = {"thread": ["libtsan.so"], "address": ["libasan.so", "libubsan.so"]}
SUPPRESSIONS = Path(__file__).with_name("thread_sanitizer.suppressions")
OPTIONS = {
    "thread": {"TSAN_OPTIONS": f"halt_on_error=1:exitcode={REPORTED}:suppressions={SUPPRESSIONS}"},
    "address": {
        # Python keeps what it needs to the end. Its own allocator would hide what is used after it was freed.
        "ASAN_OPTIONS": f"detect_leaks=0:halt_on_error=1:exitcode={REPORTED}",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    },
}


def library(name: str) -> str:
    """The path of this library of the compiler. RuntimeError if it has none."""
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        raise RuntimeError(f"gcc has no {name}")
    return found


def environment(sanitizer: str) -> dict[str, str]:
    """The environment variables that a Python needs to run with the kernel of this build."""
    preload = " ".join(library(name) for name in LIBRARIES[sanitizer])
    return os.environ | OPTIONS[sanitizer] | {"LD_PRELOAD": preload, "PYTHONPATH": str(built(sanitizer))}


def main() -> int:
    """Runs the tests; returns pytest's exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in LIBRARIES:
        print(f"python -m spec.sanitize {' | '.join(LIBRARIES)} [WORDS OF PYTEST...]", file=sys.stderr)
        return 2
    # A Java that inherits the library of a sanitizer does not start: what it builds is built before.
    try:
        for name in graph.SOURCES:
            graph.load(name)
    except tlc.MissingTlcError as error:
        print(f"the tests with state graphs are skipped: {error}", file=sys.stderr)
    around = environment(sys.argv[1])
    where = "import pillarbox.kernel.mailbox as module; print(module.__file__)"
    used = subprocess.check_output([sys.executable, "-c", where], env=around, cwd=ROOT, text=True).strip()
    if not used.startswith(around["PYTHONPATH"]):
        raise RuntimeError(f"the tests would use {used}, which is not the build of this sanitizer")
    words = sys.argv[2:] or TESTS
    # gRPC has threads of its own, which ThreadSanitizer knows too little of.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not tlc and not grpc"]
    command += [*words_for_hypothesis(), *words]
    return subprocess.run(command, env=around, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
