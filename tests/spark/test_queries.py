"""The helper of tests that starts queries: again for one error of Spark alone, and one at a time."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark import queries

NOT_CONNECTED = "Python worker failed to connect back.\n=== Streaming Query ===\nIdentifier: [id = 1]"


class Written:
    """A writer whose queries are there as the test says."""

    def __init__(self, *queries: Any) -> None:
        self.queries = list(queries)
        self.started = 0

    def start(self) -> Any:
        self.started += 1
        return self.queries[self.started - 1]


def query(error: str | None = None, *, message: str = "Initializing sources", progress: Any = None) -> Any:
    return SimpleNamespace(
        isActive=error is None, lastProgress=progress, status={"message": message}, exception=lambda: error
    )


RUNS = query(message="Waiting for data to arrive")


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.mark.parametrize(
    "text",
    [NOT_CONNECTED, f"[STREAM_FAILED] Query [id = 1] terminated with exception: {NOT_CONNECTED}"],
)
def test_a_query_that_fails_before_its_first_micro_batch_as_no_process_connects_is_started_again(
    text: str, lock: Path
) -> None:
    written = Written(query(text), query(text), RUNS)
    assert queries.start(written, lock=lock) is RUNS
    assert written.started == 3


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: no such column",
        # Somebody's own error that tells of Spark's.
        "ValueError: Python worker failed to connect back.",
        "Python worker failed to connect back to the moon",
    ],
)
def test_a_query_that_fails_with_another_error_is_not_started_again(error: str, lock: Path) -> None:
    failed = query(error)
    written = Written(failed)
    assert queries.start(written, lock=lock) is failed
    assert written.started == 1


def test_a_query_that_has_made_a_micro_batch_is_not_started_again(lock: Path) -> None:
    failed = query(NOT_CONNECTED, progress={"batchId": 0})
    written = Written(failed)
    assert queries.start(written, lock=lock) is failed
    assert written.started == 1


class Watched:
    """A query that has begun when it was asked for the third time; whether the lock was free, each time."""

    isActive = True
    lastProgress = None

    def __init__(self, lock: Path) -> None:
        self.lock, self.free = lock, list[bool]()

    @property
    def status(self) -> dict[str, str]:
        self.free.append(is_free(self.lock))
        return {"message": "Waiting for data to arrive" if len(self.free) == 3 else "Initializing sources"}


def is_free(lock: Path) -> bool:
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_no_other_query_starts_until_one_has_begun(lock: Path) -> None:
    watched = Watched(lock)
    assert queries.start(Written(watched), lock=lock) is watched
    assert watched.free == [False, False, False]
    assert is_free(lock)
