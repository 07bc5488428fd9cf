"""Report what a Spark executor gives its Python: versions, memory, folders, limits, the way to the driver.

Sent to executors as text and run there by `python -c`, so that nothing has to be installed: it imports
nothing of Pillarbox but to try whether that works. Needs Python 3.7. One thread.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import sys
import tempfile
import threading
import time

MIB = 1 << 20
REACH_TIMEOUT_S = 5.0
THREADS_TRIED = 32


def imported(name: str, within: str | None = None) -> dict[str, str]:
    """Import a package, and the module `within` of it; returns its version and folder, or the error."""
    try:
        module = __import__(name)
        if within is not None:
            __import__(within)
    except BaseException as error:
        return {"error": type(error).__name__ + ": " + str(error).split("\n")[0]}
    # Each executor has a working folder of its own; what lies in it is named alike on all of them.
    folder = os.path.dirname(str(getattr(module, "__file__", "")))
    here = os.getcwd() + os.sep
    if folder.startswith(here):  # noqa: FURB188 `removeprefix` came with Python 3.9
        folder = folder[len(here) :]
    return {"version": str(getattr(module, "__version__", "unknown")), "folder": folder}


def number_in(path: str) -> int | None:
    """The number that a file of the kernel begins with; None for a word, and without such a file."""
    try:
        with open(path) as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def memory() -> dict[str, int | None]:
    """Bytes: `available` on the machine, and `limit` and `used` of the control group where there is one."""
    found: dict[str, int | None] = {"available": None, "limit": None, "used": None}
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    found["available"] = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    groups = (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    )
    for limit, used in groups:
        value = number_in("/sys/fs/cgroup/" + limit)
        if value is not None and value < 1 << 60:
            found["limit"], found["used"] = value, number_in("/sys/fs/cgroup/" + used)
            break
    return found


def limit_of(name: str) -> int | None:
    """A soft limit of this process; None for none."""
    try:
        import resource

        soft = resource.getrlimit(getattr(resource, name))[0]
        return None if soft == resource.RLIM_INFINITY else soft
    except (ImportError, AttributeError, OSError):
        return None


def written(folder: str) -> dict[str, object]:
    """Write and sync a file in `folder`; returns milliseconds and free bytes, or the error."""
    try:
        began = time.monotonic()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"pillarbox")
            file.flush()
            os.fsync(file.fileno())
        took = (time.monotonic() - began) * 1e3
        return {"folder": folder, "milliseconds": took, "free": shutil.disk_usage(folder).free}
    except OSError as error:
        return {"folder": folder, "error": str(error)}


def temporary() -> dict[str, object]:
    """The folder for temporary files, written to."""
    try:
        return written(tempfile.gettempdir())
    except OSError as error:
        return {"folder": "", "error": str(error)}


def started_threads() -> dict[str, object]:
    """Start threads, as a task does; returns how many at a time, and the error that ended that."""
    ended = threading.Event()
    threads: list[threading.Thread] = []
    error = None
    try:
        for _ in range(THREADS_TRIED):
            thread = threading.Thread(target=ended.wait)
            thread.start()
            threads.append(thread)
    except (RuntimeError, MemoryError) as failed:
        error = str(failed)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    return {"started": len(threads), "error": error}


def reached(addresses: list[list[object]]) -> list[dict[str, object]]:
    """Connect to hosts and ports in turn, up to the first that works; returns what was found of each."""
    found: list[dict[str, object]] = []
    for host, port in addresses:
        address = str(host) + ":" + str(port)
        try:
            socket.create_connection((str(host), int(str(port))), REACH_TIMEOUT_S).close()
            found.append({"address": address, "error": None})
            break
        except OSError as error:
            found.append({"address": address, "error": str(error)})
    return found


def marked(location: str, mark: str) -> dict[str, object]:
    """Look for the driver's file `mark` at a ledger's location, and write and delete a file beside it."""
    name = mark + "-" + socket.gethostname() + "-" + str(os.getpid())
    try:
        if "://" in location and not location.startswith("file://"):
            import pyarrow.fs

            files, path = pyarrow.fs.FileSystem.from_uri(location)
            path = path.rstrip("/")
            sees = files.get_file_info(path + "/" + mark).type == pyarrow.fs.FileType.File
            files.open_output_stream(path + "/" + name).close()
            files.delete_file(path + "/" + name)
        else:
            # `removeprefix` came with Python 3.9.
            path = location[7:] if location.startswith("file://") else location  # noqa: FURB188
            sees = os.path.exists(os.path.join(path, mark))
            with open(os.path.join(path, name), "xb") as file:
                os.fsync(file.fileno())
            os.unlink(os.path.join(path, name))
    except Exception as error:
        # The text of a store's error may have the address, with a key in it.
        return {"error": type(error).__name__ + (": " + str(error) if "://" not in location else "")}
    return {"sees": sees, "error": None}


def report(asked: dict[str, object], executor: str) -> dict[str, object]:
    """All that the driver asked for, of this executor."""
    ledger = asked.get("ledger")
    addresses: list[list[object]] = asked.get("addresses") or []  # type: ignore[assignment]
    found: dict[str, object] = {
        "executor": executor,
        "host": socket.gethostname(),
        "python": list(sys.version_info[:3]),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "platform": sys.platform + " " + platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        # Not by importing all of it: that is what a job does, and it may need what is looked for below.
        "pillarbox": imported("pillarbox", "pillarbox.kernel.mailbox"),
        "pyarrow": imported("pyarrow"),
        "pandas": imported("pandas"),
        "memory": memory(),
        "descriptors": limit_of("RLIMIT_NOFILE"),
        "addresses": limit_of("RLIMIT_AS"),
        "pids": [number_in("/sys/fs/cgroup/pids.max"), number_in("/sys/fs/cgroup/pids.current")],
        "temporary": temporary(),
        "threads": started_threads(),
        "reach": reached(addresses),
    }
    if ledger is not None:
        found["ledger"] = marked(str(ledger), str(asked["mark"]))
    return found


if __name__ == "__main__":
    print(json.dumps(report(json.loads(os.environ["PILLARBOX_PROBE"]), sys.argv[1])))
