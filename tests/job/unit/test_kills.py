"""Jobs that are killed by SIGKILL at random moments: each row in the sink once, and few calls made again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pillarbox.aio.calls import CallState
from pillarbox.aio.snapshots import SnapshotCodec
from pillarbox.aio.states import AsyncWaitState
from pillarbox.job import JsonLinesSink
from pillarbox.job.checkpoints import Checkpoint, read_checkpoint
from pillarbox.task.protocols import RowBatch
from spec.seeds import commit_seed
from tests.job.topics import committed_values
from tests.job.unit import killed
from tests.servers.kafka_server import LONG, KafkaServer
from tests.waiting import wait_until

MAX_LIFE_S = 0.6
"""Seconds that a life lasts from its first call, at most."""
PARTITIONS = 3

Unread = Callable[[Checkpoint], set[int]]
"""The numbers of the rows that are to be read after a checkpoint."""


class Lives:
    """A job that is killed again and again, and what is known of its calls."""

    def __init__(self, folder: Path, words: Sequence[str], dice: random.Random) -> None:
        self._folder = folder
        self._words = words
        self._dice = dice
        self.kills = 0
        self.life = 0

    def run(self, kills: int) -> None:
        """Kill it so often, unless it has ended before; then have it run to its end."""
        while self.kills < kills:
            if self._live(self._dice.uniform(0.0, MAX_LIFE_S)):
                return
            self.kills += 1
        assert self._live(None)

    def _live(self, seconds: float | None) -> bool:
        """One life; True if it has come to its end."""
        self.life += 1
        checkpoints = self._folder / "checkpoints"
        if checkpoints.exists():
            # Those that it may go on from.
            shutil.copytree(checkpoints, self._folder / f"before-{self.life}")
        words = ["--folder", str(self._folder), "--life", str(self.life), *self._words]
        with (self._folder / "said").open("w") as said:
            process = subprocess.Popen([sys.executable, "-m", killed.__name__, *words], stderr=said)
            try:
                if seconds is not None:
                    wait_until(lambda: process.poll() is not None or self.notes(self.life))
                    try:
                        process.wait(seconds)
                    except subprocess.TimeoutExpired:
                        os.kill(process.pid, signal.SIGKILL)
                code = process.wait(LONG)
            finally:
                process.kill()
                process.wait()
        assert code in (0, -signal.SIGKILL), (self._folder / "said").read_text()[-4000:]
        return code == 0

    def notes(self, life: int) -> list[tuple[str, int]]:
        """The events of a life, in their order."""
        path = self._folder / "calls"
        notes = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
        return [(event, number) for each, event, number in notes if each == life]

    def calls_again(self, rows: int, unread: Unread) -> list[str]:
        """The calls of all lives whose results the checkpoint had from which they went on."""
        found = []
        for life in range(2, self.life + 1):
            notes = self.notes(life)
            restored = next((number for event, number in notes if event == "restored"), 0)
            if restored:
                [path] = (self._folder / f"before-{life}").glob(f"{restored:010}.*")
                checkpoint = read_checkpoint(path)
                has_result = set(range(rows)) - unread(checkpoint) - called_again(checkpoint)
                begun = {number for event, number in notes if event == "begin"}
                found += [f"life {life}: row {number}" for number in sorted(begun & has_result)]
        return found


def number_of(row: Any) -> int:
    return int(row if isinstance(row, int) else row.value)


def called_again(checkpoint: Checkpoint) -> set[int]:
    """The rows that were read, and have no result in the checkpoint."""
    found: set[int] = set()
    for operator in SnapshotCodec().decode(checkpoint.task).operators.values():
        assert isinstance(operator.state, AsyncWaitState)
        found |= {number_of(each.row) for each in operator.state.entries if isinstance(each, CallState)}
        for element in operator.pending:
            assert isinstance(element, RowBatch)
            found |= {number_of(row) for row in element.rows[element.position :]}
    return found


def positions(checkpoint: Checkpoint) -> dict[str, int]:
    """Of each split that is not read to its end: where it is read on from."""
    assert checkpoint.source is not None
    waiting = [(split, skip) for split, skip in checkpoint.source["waiting"]]
    for state in checkpoint.source["readers"].values():
        waiting += [(split, state["skip"].get(split["split_id"], 0)) for split in state["splits"]]
    return {split["split_id"]: (split.get("start") or 0) + skip for split, skip in waiting}


def is_discovered(checkpoint: Checkpoint) -> bool:
    """False before the source has found any split."""
    assert checkpoint.source is not None
    return bool(checkpoint.source["enumerator"]["checkpoint"])


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    seed = commit_seed(request.node.name)
    print(f"seed {seed}")
    return random.Random(seed)


def kill_over_files(folder: Path, dice: random.Random, rows: int, kills: int) -> Lives:
    lives = Lives(folder, [str(rows), str(folder / "out")], dice)
    lives.run(kills)
    lines = [line for file in JsonLinesSink(folder / "out").files() for line in file.read_text().splitlines()]
    found = Counter(int(json.loads(line)["value"]) for line in lines)
    assert found == Counter(range(rows))

    def unread(checkpoint: Checkpoint) -> set[int]:
        if not is_discovered(checkpoint):
            return set(range(rows))
        return set(range(positions(checkpoint).get("all", rows), rows))

    assert lives.calls_again(rows, unread) == []
    return lives


@pytest.mark.contract(
    "A job of `pillarbox.run` that is killed at random moments and started again writes each row into its "
    "files once, and makes no call again whose result its checkpoint has."
)
@pytest.mark.timeout(600)
def test_a_job_over_files_that_is_killed_writes_each_row_once(tmp_path: Path, dice: random.Random) -> None:
    lives = kill_over_files(tmp_path, dice, rows=3000, kills=3)
    assert lives.kills


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_job_over_files_that_is_killed_two_hundred_times_writes_each_row_once(
    tmp_path: Path, dice: random.Random
) -> None:
    kills = 0
    while kills < 100:
        folder = tmp_path / str(kills)
        folder.mkdir()
        kills += kill_over_files(folder, dice, rows=10_000, kills=25).kills


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
    kafka = KafkaServer(tmp_path_factory.mktemp("kafka"))
    yield kafka
    kafka.close()


def kill_over_kafka(
    server: KafkaServer, name: str, folder: Path, dice: random.Random, rows: int, kills: int
) -> Lives:
    numbers, out = f"numbers-{name}", f"out-{name}"
    server.create(numbers, PARTITIONS)
    server.create(out)
    for partition in range(PARTITIONS):
        server.produce(numbers, *range(partition, rows, PARTITIONS), partition=partition)
    lives = Lives(folder, [server.bootstrap, numbers, out], dice)
    lives.run(kills)
    assert Counter(committed_values(server, out)) == Counter(range(rows))

    def unread(checkpoint: Checkpoint) -> set[int]:
        if not is_discovered(checkpoint):
            return set(range(rows))
        starts = {int(split_id.split("/")[1]): at for split_id, at in positions(checkpoint).items()}
        return {
            number for number in range(rows) if number // PARTITIONS >= starts.get(number % PARTITIONS, rows)
        }

    assert lives.calls_again(rows, unread) == []
    return lives


@pytest.mark.server
@pytest.mark.contract(
    "A job of `pillarbox.run` from Kafka to Kafka that is killed at random moments and started again writes "
    "each row in transactions once.",
    needs="Kafka, which commits the transactions",
)
@pytest.mark.timeout(900)
def test_a_job_over_kafka_that_is_killed_writes_each_row_once(
    server: KafkaServer, tmp_path: Path, dice: random.Random
) -> None:
    lives = kill_over_kafka(server, "few", tmp_path, dice, rows=3000, kills=3)
    assert lives.kills


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_job_over_kafka_that_is_killed_two_hundred_times_writes_each_row_once(
    server: KafkaServer, tmp_path: Path, dice: random.Random
) -> None:
    kills = 0
    while kills < 100:
        folder = tmp_path / str(kills)
        folder.mkdir()
        kills += kill_over_kafka(server, f"many-{kills}", folder, dice, rows=10_000, kills=25).kills
