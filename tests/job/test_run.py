"""`pillarbox.run`: a job in one process, its checkpoints, its ends, and how it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox import CallFailed, Errors, Step
from pillarbox.job import CheckpointError, JsonLinesSink, ParquetSink, Run, Sink
from pillarbox.sources import SimpleSource, Split, WatermarkStrategy
from pillarbox.sources.connectors.generator import GeneratorSource
from tests.waiting import wait_until

LONG_S = 60.0
NEVER_S = 10_000.0
"""An interval in which no checkpoint is taken by itself."""


class Service:
    """A function that counts its calls; those of rows in `held` wait until they are let go."""

    def __init__(self, *held: int) -> None:
        self.calls: Counter[int] = Counter()
        self.held = set(held)

    async def __call__(self, number: int) -> dict[str, int]:
        self.calls[number] += 1
        while number in self.held:
            await asyncio.sleep(0.001)
        return {"number": number}


class Memory(Sink):
    """A sink whose rows outlast the jobs of a test; what is prepared is kept, or lost, with a life."""

    def __init__(self, *, survives: bool = True) -> None:
        self.rows: list[Any] = []
        self.events: list[Any] = []
        """Rows and watermarks in front of the cuts of checkpoints, in their order."""
        self._new_events: list[Any] = []
        self.committed = 0
        self._survives = survives
        self._new: list[Any] = []
        self._prepared: dict[int, list[Any]] = {}

    def recover(self, prepared: Sequence[Any]) -> bool:
        self._new, self._new_events = [], []
        if not self._survives:
            self._prepared = {}
            return not prepared or self.committed >= max(prepared)
        self.commit(prepared)
        self._prepared = {}
        return True

    def write(self, rows: Sequence[Any]) -> None:
        self._new += rows
        self._new_events += rows

    def watermark(self, seconds: float) -> None:
        self._new_events.append(f"watermark {seconds:g}")

    def prepare(self, checkpoint: int) -> int:
        self._prepared[checkpoint], self._new = self._new, []
        self.events += self._new_events
        self._new_events = []
        return checkpoint

    def commit(self, prepared: Sequence[Any]) -> None:
        for number in prepared:
            self.rows += self._prepared.pop(number, [])
            self.committed = number


def lines(sink: JsonLinesSink) -> list[Any]:
    return [json.loads(line) for file in sink.files() for line in file.read_text().splitlines()]


def numbers(rows: Sequence[Any]) -> list[int]:
    return sorted(row["number"] for row in rows)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.mark.contract(
    "`pillarbox.run` carries each row of a source through a chain of functions into its sink."
)
def test_each_row_passes_the_chain_into_the_sink(tmp_path: Path, checkpoints: Path) -> None:
    async def double(row: Any) -> dict[str, int]:
        return {"id": row.id, "double": row["id"] * 2}

    async def name(row: Any) -> list[dict[str, Any]]:
        return [{"id": row.id, "name": f"{row.double}.{part}"} for part in range(2)]

    sink = JsonLinesSink(tmp_path / "out")
    source = GeneratorSource(rows=100, splits=3)
    with pillarbox.run(
        source, [double, Step(name, capacity=4)], sink, checkpoints=checkpoints, interval=0.01, readers=2
    ) as job:
        assert job.wait(LONG_S)
    assert {row["name"] for row in lines(sink)} == {
        f"{2 * n}.{part}" for n in range(100) for part in range(2)
    }
    now = job.statistics()
    assert (now.state, now.rows_committed, len(lines(sink))) == ("finished", 200, 200)
    assert [totals.results for totals in now.functions.values()] == [100, 100]


def test_a_job_that_has_finished_does_nothing_when_it_is_started_again(checkpoints: Path) -> None:
    sink, service = Memory(), Service()
    for _ in range(2):
        assert pillarbox.run(range(10), service, sink, checkpoints=checkpoints).wait(LONG_S)
    assert numbers(sink.rows) == [*range(10)]
    assert service.calls.total() == 10


def test_rows_become_parquet(tmp_path: Path, checkpoints: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

    @dataclass
    class Square:
        number: int
        square: int

    async def square(number: int) -> Square:
        return Square(number, number * number)

    sink = ParquetSink(tmp_path / "out", [("number", "int64"), ("square", "int64"), ("more", "string")])
    pillarbox.run(range(50), square, sink, checkpoints=checkpoints, interval=NEVER_S, allowed=[Square]).wait(
        LONG_S
    )
    table = parquet.read_table(tmp_path / "out")
    assert table["square"].to_pylist() == [n * n for n in range(50)]
    assert table["more"].null_count == 50


@pytest.mark.contract(
    "A job of `pillarbox.run` that is stopped goes on where it stood: each row is in its sink once, and only "
    "the calls that were in flight are made again.",
    convicts=["stop_without_checkpoint", "rows_behind_a_stop_committed", "order_of_snapshot_kept"],
)
@pytest.mark.parametrize("survives", [True, False])
def test_a_stopped_job_goes_on_and_makes_only_the_calls_in_flight_again(
    checkpoints: Path, survives: bool
) -> None:
    sink, service = Memory(survives=survives), Service(3, 7)
    options: dict[str, Any] = {"checkpoints": checkpoints, "interval": NEVER_S}
    job = pillarbox.run(range(20), service, sink, ordered=True, capacity=5, **options)
    # The others have a result, and wait for their turn behind row 3.
    wait_until(lambda: job.statistics().functions and service.calls[19])
    job.stop()
    assert job.statistics().state == "stopped"
    assert numbers(sink.rows) == [0, 1, 2]
    service.held.clear()
    # Another order, capacity and number of readers.
    job = pillarbox.run(range(20), service, sink, ordered=False, capacity=2, readers=3, **options)
    assert job.wait(LONG_S)
    assert job.statistics().restored == 1
    assert numbers(sink.rows) == [*range(20)]
    assert {number for number, calls in service.calls.items() if calls > 1} <= {3, 7}


def test_a_cancelled_job_goes_on_from_its_last_checkpoint(checkpoints: Path) -> None:
    sink, service = Memory(), Service(5)
    options: dict[str, Any] = {"checkpoints": checkpoints, "interval": NEVER_S, "capacity": 1}
    job = pillarbox.run(range(10), service, sink, **options)
    wait_until(lambda: service.calls[5])
    job.cancel()
    job.cancel()
    assert job.statistics().state == "cancelled"
    assert job.wait(LONG_S)
    assert sink.rows == []
    service.held.clear()
    pillarbox.run(range(10), service, sink, **options).wait(LONG_S)
    assert numbers(sink.rows) == [*range(10)]
    assert service.calls == Counter({number: 2 if number <= 5 else 1 for number in range(10)})


@pytest.mark.parametrize("urgent", [True, False])
def test_a_checkpoint_that_is_asked_for_commits_the_rows_before_it(checkpoints: Path, urgent: bool) -> None:
    sink, service = Memory(), Service(5)
    job = pillarbox.run(range(10), service, sink, checkpoints=checkpoints, interval=NEVER_S, capacity=1)
    wait_until(lambda: service.calls[5])
    assert job.checkpoint(urgent=urgent) == 1
    assert numbers(sink.rows) == [0, 1, 2, 3, 4]
    service.held.clear()
    assert job.wait(LONG_S)
    assert job.statistics().last_checkpoint == 2
    with pytest.raises(CheckpointError, match="the job has ended"):
        job.checkpoint()


@pytest.mark.contract("A savepoint of a job begins another job, with another folder of checkpoints.")
def test_a_savepoint_begins_another_job(tmp_path: Path, checkpoints: Path) -> None:
    sink, service = Memory(), Service(5)
    job = pillarbox.run(range(10), service, sink, checkpoints=checkpoints, interval=NEVER_S, capacity=1)
    wait_until(lambda: service.calls[5])
    job.stop(savepoint=tmp_path / "saved")
    before = numbers(sink.rows)
    service.held.clear()
    other, again = tmp_path / "others", Memory()
    pillarbox.run(range(10), service, again, checkpoints=other, restore=tmp_path / "saved").wait(LONG_S)
    assert before + numbers(again.rows) == [*range(10)]
    job = pillarbox.run(range(10), service, again, checkpoints=other, restore=tmp_path / "saved")
    with pytest.raises(CheckpointError, match="holds checkpoints already"):
        job.wait(LONG_S)


def test_a_savepoint_may_be_taken_while_a_job_goes_on(tmp_path: Path, checkpoints: Path) -> None:
    sink, service = Memory(), Service(5)
    job = pillarbox.run(range(10), service, sink, checkpoints=checkpoints, interval=NEVER_S, capacity=1)
    wait_until(lambda: service.calls[5])
    job.savepoint(tmp_path / "saved")
    with pytest.raises(ValueError, match="exists already"):
        job.savepoint(tmp_path / "saved")
    with pytest.raises(ValueError, match="there is no folder"):
        job.savepoint(tmp_path / "missing" / "saved")
    service.held.clear()
    assert job.wait(LONG_S)
    assert numbers(sink.rows) == [*range(10)]


@pytest.mark.contract(
    "A checkpoint of a job that cannot be written is aborted; its rows are committed with the next one.",
    convicts=["committed_before_durable", "aborted_rows_dropped"],
)
@pytest.mark.parametrize("survives", [True, False])
def test_the_rows_of_an_aborted_checkpoint_are_committed_with_the_next_one(
    tmp_path: Path, checkpoints: Path, survives: bool
) -> None:
    sink, service = Memory(survives=survives), Service(3, 7)
    job = pillarbox.run(range(10), service, sink, checkpoints=checkpoints, interval=NEVER_S, capacity=1)
    wait_until(lambda: service.calls[3])
    checkpoints.rename(tmp_path / "away")
    with pytest.raises(OSError, match="No such file"):
        job.checkpoint()
    assert (job.statistics().aborted, sink.rows) == (1, [])
    (tmp_path / "away").rename(checkpoints)
    service.held.discard(3)
    wait_until(lambda: service.calls[7])
    assert job.checkpoint() == 2
    assert numbers(sink.rows) == [*range(7)]
    service.held.clear()
    assert job.wait(LONG_S)
    assert numbers(sink.rows) == [*range(10)]


class Breaks(Memory):
    """A sink that fails while it commits, as a process does that is killed then."""

    def __init__(self, *, survives: bool) -> None:
        super().__init__(survives=survives)
        self.breaks = False

    def commit(self, prepared: Sequence[Any]) -> None:
        if self.breaks and prepared:
            raise ConnectionError("gone")
        super().commit(prepared)


@pytest.mark.contract(
    "A job whose sink has lost what it had prepared goes on from the checkpoint before; one whose sink has "
    "it commits that.",
    convicts=["lost_rows_believed", "restart_commits_nothing", "older_checkpoint_removed_early"],
)
@pytest.mark.parametrize("survives", [True, False])
def test_a_job_goes_on_from_the_newest_checkpoint_whose_rows_the_sink_has(
    checkpoints: Path, survives: bool
) -> None:
    sink, service = Breaks(survives=survives), Service(3, 7)
    options: dict[str, Any] = {"checkpoints": checkpoints, "interval": NEVER_S, "capacity": 1}
    job = pillarbox.run(range(10), service, sink, **options)
    wait_until(lambda: service.calls[3])
    job.checkpoint()
    service.held.discard(3)
    wait_until(lambda: service.calls[7])
    sink.breaks = True
    with pytest.raises(ConnectionError):
        job.checkpoint()
    with pytest.raises(ConnectionError):
        job.wait(LONG_S)
    sink.breaks = False
    service.held.clear()
    job = pillarbox.run(range(10), service, sink, **options)
    assert job.wait(LONG_S)
    assert job.statistics().restored == (2 if survives else 1)
    assert numbers(sink.rows) == [*range(10)]
    again = {number for number, calls in service.calls.items() if calls > 1}
    assert again <= ({7} if survives else {3, 4, 5, 6, 7})


def test_a_failed_job_raises_its_error_and_goes_on_with_a_mended_function(checkpoints: Path) -> None:
    sink, broken = Memory(), [True]
    calls: Counter[int] = Counter()

    async def ask(number: int) -> dict[str, int]:
        calls[number] += 1
        if number == 6 and broken:
            raise ValueError("six")
        return {"number": number}

    async def gate(row: Any) -> dict[str, int]:
        return {"number": row.number}

    job = pillarbox.run(range(10), [ask, gate], sink, checkpoints=checkpoints, interval=NEVER_S, capacity=1)
    with pytest.raises(CallFailed, match="six"):
        job.wait(LONG_S)
    assert job.statistics().state == "failed"
    broken.clear()
    pillarbox.run(range(10), [ask, gate], sink, checkpoints=checkpoints, interval=NEVER_S).wait(LONG_S)
    assert numbers(sink.rows) == [*range(10)]


def test_failed_rows_leave_in_the_form_that_errors_says(tmp_path: Path, checkpoints: Path) -> None:
    async def odd(number: int) -> dict[str, int]:
        if number % 2 == 0:
            raise ValueError(f"{number} is even")
        return {"odd": number}

    rows: dict[str, list[Any]] = {}
    for form in ("column", "null", "drop"):
        sink = Memory()
        errors = Errors(form, dead_letter=tmp_path / "dead") if form == "drop" else form
        pillarbox.run(range(4), odd, sink, checkpoints=checkpoints / form, keep="*", errors=errors).wait(
            LONG_S
        )
        rows[form] = sink.rows
    assert [row.get("odd") for row in rows["column"]] == [None, 1, None, 3]
    assert [row["value"] for row in rows["column"]] == [0, 1, 2, 3]
    assert rows["column"][0]["_error"]["message"] == "0 is even"
    assert rows["column"][1]["_error"] is None
    assert rows["null"] == [{"value": 0}, {"value": 1, "odd": 1}, {"value": 2}, {"value": 3, "odd": 3}]
    assert rows["drop"] == [{"value": 1, "odd": 1}, {"value": 3, "odd": 3}]
    assert [json.loads(line)["row"] for line in (tmp_path / "dead").read_text().splitlines()] == [0, 2]


@dataclass(frozen=True)
class TwoHalves(SimpleSource[Any]):
    """Two splits with their event times: that of the later half is there at once, the other one waits."""

    gate: threading.Event = field(default_factory=threading.Event)
    schema = (("number", "int64"), ("at", "float64"))
    split_type = Split

    def list_splits(self) -> list[Split]:
        return [Split("early", 0, 5), Split("late", 100, 105)]

    def read(self, split: Split) -> Iterator[Any]:
        for number in range(split.start, split.stop):
            while number == 4 and not self.gate.is_set():
                yield None
            yield [(number, float(number))], number + 1


@pytest.mark.contract(
    "The watermark of a job is that of the slowest reader of its source.", convicts=["slow_reader_passed"]
)
def test_the_watermark_is_that_of_the_slowest_reader(checkpoints: Path) -> None:
    sink, source = Memory(), TwoHalves()
    called: set[int] = set()

    async def ask(row: Any) -> dict[str, int]:
        called.add(row.number)
        return {"number": row.number}

    job = pillarbox.run(
        source,
        ask,
        sink,
        checkpoints=checkpoints,
        interval=NEVER_S,
        readers=2,
        watermarks=WatermarkStrategy("at"),
    )
    wait_until(lambda: 104 in called and 3 in called)
    job.checkpoint()
    seconds = [float(each.split()[1]) for each in sink.events if isinstance(each, str)]
    assert max(seconds, default=0.0) <= 3.0
    source.gate.set()
    assert job.wait(LONG_S)
    assert numbers(sink.rows) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]


class Slow(Memory):
    """A sink that writes when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.go = threading.Event(), threading.Event()

    def write(self, rows: Sequence[Any]) -> None:
        self.writes.set()
        self.go.wait(LONG_S)
        super().write(rows)


@pytest.mark.contract(
    "A row that leaves a job behind the barrier of a checkpoint is committed with a later one.",
    convicts=["rows_pass_the_barrier"],
)
def test_a_row_behind_a_barrier_is_committed_with_a_later_checkpoint(checkpoints: Path) -> None:
    sink, service = Slow(), Service(*range(1, 6))
    options: dict[str, Any] = {"checkpoints": checkpoints, "interval": NEVER_S, "ordered": False}
    job = pillarbox.run(range(6), service, sink, **options)
    # Row 0 is being written, rows 1 and 2 wait for that, and the others leave behind the barrier.
    assert sink.writes.wait(LONG_S)
    service.held -= {1, 2}
    wait_until(lambda: job.statistics().functions[None].results >= 3)
    asked = threading.Thread(target=job.checkpoint)
    asked.start()
    wait_until(lambda: job.statistics().last_requested == 1)
    service.held.clear()
    wait_until(lambda: job.statistics().functions[None].results == 6)
    sink.go.set()
    asked.join(LONG_S)
    assert numbers(sink.rows) == [0, 1, 2]
    job.cancel()
    assert pillarbox.run(range(6), service, sink, **options).wait(LONG_S)
    assert numbers(sink.rows) == [*range(6)]


@pytest.mark.contract(
    "A job writes nothing twice whose checkpoint could not be written before it ended.",
    convicts=["found_files_committed"],
)
def test_files_of_a_checkpoint_that_was_never_written_are_removed(tmp_path: Path, checkpoints: Path) -> None:
    sink, service = JsonLinesSink(tmp_path / "out"), Service(3, 5)
    options: dict[str, Any] = {"checkpoints": checkpoints, "interval": NEVER_S, "capacity": 1}
    job = pillarbox.run(range(10), service, sink, **options)
    wait_until(lambda: service.calls[3])
    checkpoints.rename(tmp_path / "away")
    with pytest.raises(OSError, match="No such file"):
        job.checkpoint()
    service.held.discard(3)
    wait_until(lambda: service.calls[5])
    with pytest.raises(OSError, match="No such file"):
        job.checkpoint()
    (tmp_path / "away").rename(checkpoints)
    job.cancel()
    service.held.clear()
    assert pillarbox.run(range(10), service, sink, **options).wait(LONG_S)
    assert numbers(lines(sink)) == [*range(10)]


@pytest.mark.contract("In a job no row passes a watermark, in any function of its chain, restarts included.")
def test_no_row_passes_a_watermark(checkpoints: Path) -> None:
    sink, service = Memory(), Service(4)

    async def again(row: Any) -> dict[str, int]:
        await asyncio.sleep(0.001 * (7 - row.number % 7))
        return {"number": row.number}

    options: dict[str, Any] = {
        "checkpoints": checkpoints,
        "interval": NEVER_S,
        "ordered": False,
        "watermarks": WatermarkStrategy(float),
    }
    job = pillarbox.run(Positions(30), [service, again], sink, **options)
    wait_until(lambda: service.calls[29])
    job.stop()
    service.held.clear()
    assert pillarbox.run(Positions(30), [service, again], sink, **options).wait(LONG_S)
    assert numbers([each for each in sink.events if isinstance(each, dict)]) == [*range(30)]
    time = float("-inf")
    for each in sink.events:
        if isinstance(each, str):
            time = max(time, float(each.split()[1]))
        else:
            assert each["number"] > time
    assert time == float("inf")


class Positions:
    """Numbers that are read on from a position, which is the text of the last one."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.begun_at: list[Any] = []

    def rows_from(self, position: Any) -> Iterator[tuple[int, str]]:
        self.begun_at.append(position)
        for number in range(int(position or -1) + 1, self.end):
            yield number, str(number)


def test_an_iterable_with_positions_is_read_on_from_its_position(checkpoints: Path) -> None:
    sink, service, rows = Memory(), Service(6), Positions(100)
    options: dict[str, Any] = {"checkpoints": checkpoints, "interval": NEVER_S, "capacity": 1}
    job = pillarbox.run(rows, service, sink, **options)
    wait_until(lambda: service.calls[6])
    job.stop()
    service.held.clear()
    assert pillarbox.run(rows, service, sink, **options).wait(LONG_S)
    assert rows.begun_at[0] is None
    assert int(rows.begun_at[1]) >= 6
    assert numbers(sink.rows) == [*range(100)]


def test_a_generator_is_read_on_behind_the_rows_that_were_read(checkpoints: Path) -> None:
    sink, service = Memory(), Service(6)
    options: dict[str, Any] = {"checkpoints": checkpoints, "interval": NEVER_S, "capacity": 1}
    job = pillarbox.run((each for each in range(10)), service, sink, **options)
    wait_until(lambda: service.calls[6])
    job.stop()
    service.held.clear()
    assert pillarbox.run((each for each in range(10)), service, sink, **options).wait(LONG_S)
    assert numbers(sink.rows) == [*range(10)]


def test_a_function_that_is_a_resource_is_opened_around_all_calls(checkpoints: Path) -> None:
    events: list[str] = []

    class Client:
        async def __aenter__(self) -> Client:
            events.append("opened")
            return self

        async def __aexit__(self, *error: object) -> None:
            events.append("closed")

        async def __call__(self, number: int) -> dict[str, int]:
            events.append("called")
            return {"number": number}

    pillarbox.run([1], Client(), Memory(), checkpoints=checkpoints).wait(LONG_S)
    assert events == ["opened", "called", "closed"]


SCRIPT = """
import asyncio, sys
import pillarbox
from pillarbox.job import JsonLinesSink
async def ask(number):
    if number >= 40 and sys.argv[2] == "first":
        print("held", flush=True)
        await asyncio.sleep(1000)
    return {"number": number}
folder = sys.argv[1]
sink, options = JsonLinesSink(folder + "/out"), {"interval": 1000, "capacity": 1, "progress": True}
job = pillarbox.run(range(60), ask, sink, checkpoints=folder + "/checkpoints", **options)
job.wait()
"""


@pytest.mark.contract(
    "Ctrl-C stops a job of `pillarbox.run` at a checkpoint, from which the next start goes on."
)
def test_an_interrupt_stops_a_job_at_a_checkpoint(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with subprocess.Popen(
        [*words, "first"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "held\n"
        os.kill(job.pid, signal.SIGINT)
        _, said = job.communicate(timeout=LONG_S)
    assert "KeyboardInterrupt" in said
    assert "rows read" in said
    assert numbers(lines(JsonLinesSink(tmp_path / "out"))) == [*range(40)]
    subprocess.run([*words, "second"], check=True, capture_output=True, timeout=LONG_S)
    assert numbers(lines(JsonLinesSink(tmp_path / "out"))) == [*range(60)]


def test_the_line_of_a_job_says_how_far_it_is(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pillarbox.run(range(5), Service(), Memory(), checkpoints=checkpoints, progress=True).wait(LONG_S)
    assert "finished: 5 rows read, 5 written" in capsys.readouterr().err


def test_an_error_in_a_with_block_cancels_the_job(checkpoints: Path) -> None:
    service = Service(0)
    with pytest.raises(LookupError), pillarbox.run([0], service, Memory(), checkpoints=checkpoints) as job:
        raise LookupError
    assert job.statistics().state == "cancelled"


def test_a_folder_of_checkpoints_is_used_by_one_job_at_a_time(checkpoints: Path) -> None:
    service = Service(0)
    job = pillarbox.run([0], service, Memory(), checkpoints=checkpoints)
    wait_until(lambda: service.calls[0])
    with pytest.raises(CheckpointError, match="another job uses this folder"):
        pillarbox.run([0], service, Memory(), checkpoints=checkpoints).wait(LONG_S)
    service.held.clear()
    assert job.wait(LONG_S)


def stopped(checkpoints: Path) -> None:
    service = Service(0)
    job = pillarbox.run([0], [service], Memory(), checkpoints=checkpoints, interval=NEVER_S)
    wait_until(lambda: service.calls[0])
    job.stop()


def test_a_checkpoint_of_other_functions_is_refused(checkpoints: Path) -> None:
    stopped(checkpoints)

    async def other(number: int) -> int:
        return number

    with pytest.raises(CheckpointError, match="'Service', and the job has 'other'"):
        pillarbox.run([0], [other], Memory(), checkpoints=checkpoints).wait(LONG_S)


def test_a_damaged_checkpoint_is_refused(checkpoints: Path) -> None:
    stopped(checkpoints)
    [file] = checkpoints.glob("*.committed")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="is damaged"):
        pillarbox.run([0], [Service()], Memory(), checkpoints=checkpoints).wait(LONG_S)


def test_a_row_of_a_class_that_no_checkpoint_may_hold_ends_the_job(checkpoints: Path) -> None:
    class Strange:
        pass

    begun = threading.Event()

    async def ask(row: Any) -> None:
        begun.set()
        await asyncio.sleep(1000)

    job = pillarbox.run([Strange()], ask, Memory(), checkpoints=checkpoints, interval=NEVER_S)
    assert begun.wait(LONG_S)
    with pytest.raises(pillarbox.PillarboxError, match="has no place in a snapshot"):
        job.checkpoint()
    with pytest.raises(pillarbox.PillarboxError, match="has no place in a snapshot"):
        job.wait(LONG_S)


class Odd(Memory):
    def prepare(self, checkpoint: int) -> Any:
        return object()


def test_what_a_sink_prepares_must_be_json(checkpoints: Path) -> None:
    with pytest.raises(TypeError, match=r"Odd.prepare returned .* must be JSON"):
        pillarbox.run([0], Service(), Odd(), checkpoints=checkpoints).wait(LONG_S)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"source": 7}, TypeError, "source=7"),
        ({"source": "rows"}, TypeError, "one by one"),
        ({"sink": []}, TypeError, r"sink=\[\]"),
        ({"interval": 0}, ValueError, "interval=0"),
        ({"readers": 0}, ValueError, "readers=0"),
        ({"urgent": 1}, TypeError, "urgent=1"),
        ({"watermarks": 5.0}, TypeError, "watermarks=5.0"),
        ({"capacities": 5}, TypeError, "capacities"),
        ({"columns": ["none"]}, ValueError, "columns: 'none'"),
        ({"options": pillarbox.Options(where=lambda row: True)}, ValueError, "where"),
        ({"batch": pillarbox.Batch(2, arrow=True)}, ValueError, "arrow"),
        ({"ledger": pillarbox.Ledger("ledger", uid="ask")}, ValueError, "run=None"),
    ],
)
def test_a_bad_argument_is_refused_at_once(
    checkpoints: Path, change: dict[str, Any], error: type[Exception], said: str
) -> None:
    given = {
        "source": GeneratorSource(rows=1),
        "fn": Service(),
        "sink": Memory(),
        "checkpoints": checkpoints,
        **change,
    }
    with pytest.raises(error, match=said):
        pillarbox.run(given.pop("source"), given.pop("fn"), given.pop("sink"), **given)
    assert not checkpoints.exists()


def test_a_handle_shows_its_state(checkpoints: Path) -> None:
    job = pillarbox.run([0], Service(), Memory(), checkpoints=checkpoints)
    job.wait(LONG_S)
    assert isinstance(job, Run)
    assert repr(job) == "<Run, finished>"
