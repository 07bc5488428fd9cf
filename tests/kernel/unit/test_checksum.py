"""Sums of long data by the processor's instructions are those of zlib, whatever the length."""

from __future__ import annotations

import random
import zlib

from pillarbox.kernel.checksum import crc32

LENGTHS = [*range(300), 4_095, 65_535, 65_536, 300_001]


def test_a_checksum_is_that_of_zlib() -> None:
    rng = random.Random(36)
    for length in LENGTHS:
        data, before = rng.randbytes(length), rng.getrandbits(32)
        assert crc32(data) == zlib.crc32(data), length
        # A view begins at any address.
        assert crc32(memoryview(data)[3:], before) == zlib.crc32(data[3:], before), length


def test_a_checksum_goes_on_where_another_one_ended() -> None:
    data = random.Random(37).randbytes(10_000)
    for cut in (0, 1, 63, 64, 65, 9_999, 10_000):
        assert crc32(data[cut:], crc32(data[:cut])) == zlib.crc32(data)
