"""The installed PySpark, and marks that skip tests of what came with a later one, and say with which."""

from __future__ import annotations

from importlib import metadata

import pytest


def pyspark_version() -> tuple[int, ...]:
    """Its major and minor numbers; none without a PySpark."""
    try:
        # Not by importing it, which takes a third of a second in each process of tests.
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return ()
    return tuple(int(part) for part in version.split(".")[:2])


def needs_pyspark(major: int, minor: int, what: str) -> pytest.MarkDecorator:
    """Skips with an older one."""
    here = pyspark_version()
    there = ".".join(map(str, here))
    return pytest.mark.skipif(
        bool(here) and here < (major, minor),
        reason=f"{what} need PySpark {major}.{minor} or later, this is {there}",
    )


needs_source_streams = needs_pyspark(4, 2, "streams of sources")
needs_async_stream = needs_pyspark(4, 2, "streams of async_stream")
