"""The memory of questions with images, over that of the same process without any.

    python -m bench.images [--images 256] [--megabytes 5] [--in-flight 64] [--max-mib 1024]
        [--backend libcurl]

A service in a process of its own answers the first questions once `--in-flight` of them have been read, so
that so many are in flight at once. The rows come from a generator, each with another image. Printed is the
peak of the resident memory of the process that asks, by the system's count, the bytes that `Buffer.max_bytes`
had counted at most, and the CPU of a question.
"""

# Why a generator: rows of a list are in memory anyway, and are not weighed.

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pillarbox import Buffer, Options, async_map
from pillarbox.clients import Chat, Http, Images

REPLY = json.dumps(
    {
        "choices": [{"message": {"role": "assistant", "content": "good"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1},
    }
).encode()
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(REPLY) + REPLY
)
MIB = 2**20


def serve(together: int) -> None:
    """Serve on a free port, which is printed; answers go out once so many requests have been read."""
    gate = threading.Condition()
    # Now, and at most.
    waiting = [0, 0]

    def answer(connection: socket.socket) -> None:
        file = connection.makefile("rb")
        while file.readline():
            size = 0
            while (line := file.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            while size:
                size -= len(file.read(min(size, MIB)))
            with gate:
                waiting[0] += 1
                waiting[1] = max(waiting[1], waiting[0])
                gate.notify_all()
                # The last ones of a job are fewer, as are those that find no room.
                gate.wait_for(lambda: waiting[1] >= together, timeout=2.0)
                gate.wait(0.05)
                waiting[0] -= 1
            connection.sendall(ANSWER)

    server = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(server.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()


def peak_bytes() -> int:
    """The most resident memory of this process since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def forget_peak() -> None:
    """Begin to count the peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


def rows(count: int, nbytes: int) -> Iterator[dict[str, object]]:
    """Rows with an image of random bytes behind the head of a PNG."""
    for number in range(count):
        yield {"id": number, "photo": b"\x89PNG\r\n\x1a\n" + os.urandom(nbytes - 8)}


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--megabytes", type=float, default=5.0)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--max-mib", type=int, default=1024, help="Buffer.max_bytes, in MiB")
    parser.add_argument("--backend", default="libcurl", choices=("libcurl", "aiohttp"))
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.serve is not None:
        serve(words.serve)
    service = subprocess.Popen(
        [sys.executable, "-m", "bench.images", "--serve", str(words.in_flight)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert service.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(service.stdout.readline())}/v1"
        client = Chat(
            url,
            "small",
            prompt="What is it?",
            images=Images("photo", max_bytes=1 << 30),
            http=Http(proxy="direct", backend=words.backend),
        )
        nbytes = int(words.megabytes * 1_000_000)
        options = Options(capacity=words.in_flight, buffer=Buffer(max_bytes=words.max_mib * MIB))
        list(async_map(rows(2, 10_000), client, options=options))
        forget_peak()
        before, cpu, began = peak_bytes(), time.process_time(), time.perf_counter()
        results = async_map(rows(words.images, nbytes), client, options=options)
        held = most = 0
        for answer in results:
            assert answer == "good"
            statistics = results.statistics()
            assert statistics is not None
            held, most = max(held, statistics.held_bytes), max(most, statistics.in_flight)
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
        over = peak_bytes() - before
        print(
            f"{words.backend}: {words.images} images of {words.megabytes:g} MB, capacity {words.in_flight}, "
            f"max_bytes {words.max_mib} MiB: peak {over / MIB:,.0f} MiB over {before / MIB:,.0f}, which is "
            f"{over / (words.max_mib * MIB):.2f} of max_bytes; counted {held / MIB:,.0f} MiB, {most} calls "
            f"in flight when results came; {1e3 * cpu / words.images:.1f} ms of CPU a question (random bytes "
            f"included), {seconds:.1f} s"
        )
    finally:
        service.kill()


if __name__ == "__main__":
    main()
