"""Fixtures of the tests of recorded histories: threads that interleave finely."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fuzz import workload
from pillarbox.testing.linearizability import Event

Record = Callable[..., list[Event]]


@pytest.fixture
def record() -> Iterator[Record]:
    """`fuzz.workload.record`: three producers, a consumer and a quiescer at a mailbox; their history."""
    with workload.short_switches():
        yield workload.record
