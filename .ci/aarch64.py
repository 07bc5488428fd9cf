"""Run the kernel's native stress on aarch64 by qemu: its headers, compiled for that processor.

    python .ci/aarch64.py

Called by `make aarch64`. Needs Debian's packages g++-aarch64-linux-gnu and qemu-user. qemu emulates the
instructions of a machine whose memory is weaker than x86-64's, but runs them on this one: what the weaker
order permits is not seen here. The models of memory in `spec/orders.toml` are for that. Exits with 1 if a
program fails.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

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


def main() -> int:
    """Compile and run the programs; returns the exit status."""
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if missing:
        print(f"not here: {', '.join(missing)}: apt-get install g++-aarch64-linux-gnu qemu-user")
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
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
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
