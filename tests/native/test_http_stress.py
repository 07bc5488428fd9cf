"""The native thread of libcurl under load, its reader of vectors, its decompression; under sanitizers too."""

from __future__ import annotations

import gzip
import random
import sys
import zlib
from pathlib import Path

import pytest

from spec.native import COMPILER, compiled, run
from tests.native.sanitizers import ASAN, TSAN, needs

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.mark.skipif(sys.platform != "linux", reason="the thread waits in an epoll")
@pytest.mark.contract("A request comes back from the thread of libcurl once, however it ends.")
@pytest.mark.parametrize(
    "sanitizer",
    [
        "-O2",
        pytest.param(TSAN, marks=pytest.mark.slow),
        pytest.param(ASAN, marks=pytest.mark.slow),
    ],
)
def test_a_request_comes_back_once_however_it_ends(sanitizer: str) -> None:
    needs(sanitizer)
    pytest.importorskip("pycurl")
    # The module itself needs an interpreter; the library that it is linked with does not.
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    (libcurl,) = (path for path in mapped if Path(path).name.startswith(("libcurl-", "libcurl.so")))
    done = run(compiled("http_stress", sanitizer), libcurl)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("sanitizer", ["-O2", pytest.param(ASAN, marks=pytest.mark.slow)])
def test_vectors_are_read_from_whole_answers_and_nothing_beyond_damaged_ones(sanitizer: str) -> None:
    done = run(compiled("vectors_fuzz", sanitizer))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("sanitizer", ["-O2", pytest.param(ASAN, marks=pytest.mark.slow)])
def test_numbers_of_lists_are_those_of_c_and_nothing_is_read_beyond_a_text(
    sanitizer: str,
) -> None:
    done = run(compiled("number_lists_fuzz", sanitizer))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def streams() -> list[tuple[str, bytes, bytes]]:
    """Compressed streams, each with its coding and its text."""
    generator = random.Random(7)
    texts = [b"again and again, " * 400, generator.randbytes(3_000), b"a", bytes(200_000)]
    found = []
    for text in texts:
        wrapped = zlib.compress(text)
        found += [("gzip", gzip.compress(text), text), ("deflate", wrapped, text)]
        found.append(("deflate", wrapped[2:-4], text))
    return found


@pytest.mark.parametrize("sanitizer", ["-O2", pytest.param(ASAN, marks=pytest.mark.slow)])
def test_compressed_answers_come_out_whole_within_their_bound_or_not_at_all(
    sanitizer: str, tmp_path: Path
) -> None:
    needs(sanitizer)
    path = tmp_path / "streams"
    parts = [
        b"%s %d %d\n%s%s" % (word.encode(), len(each), len(text), each, text)
        for word, each, text in streams()
    ]
    path.write_bytes(b"".join(parts))
    done = run(compiled("inflate_fuzz", sanitizer), str(path))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
