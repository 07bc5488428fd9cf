"""The parts of the harness do what they say: service, log, clock, disk, plan, stacks, what is committed."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import psutil
import pytest

from fuzz.chaos import processes
from fuzz.chaos.check import Verdict
from fuzz.chaos.committed import Row, committed_batches, committed_rows, durable_calls
from fuzz.chaos.disk import SmallDisk
from fuzz.chaos.faults import FAULTS, Fired, set_clock
from fuzz.chaos.job import KINDS
from fuzz.chaos.places import environment
from fuzz.chaos.plan import plan_run
from fuzz.chaos.report import excused, json_line, read_runs, summary
from fuzz.chaos.run import Outcome
from fuzz.chaos.server import Server
from fuzz.chaos.stacks import dump_stacks
from pillarbox.ledger import KeyMaker, Ledger, Scope

LATENCY = 0.02


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, 1, latency=LATENCY, badness=0.0) as server:
        yield server


def ask(server: Server, key: int, patience: float = 10.0) -> dict[str, int]:
    with urllib.request.urlopen(f"{server.url}/call/{key}", b"", timeout=patience) as response:
        said: dict[str, int] = json.loads(response.read())
        return said


def ended(server: Server, count: int) -> list[str]:
    """The outcomes of the calls, once so many have one."""
    while True:
        server.log.read()
        outcomes = [call.outcome for call in server.log.calls.values()]
        if sum(outcome != "open" for outcome in outcomes) >= count:
            return outcomes


def test_the_service_writes_down_each_call_and_answers_with_its_number(server: Server) -> None:
    said = [ask(server, key) for key in (3, 5, 3)]
    assert [each["answer"] for each in said] == [7, 11, 7]
    assert ended(server, 3) == ["ok"] * 3
    assert [server.log.calls[each["call"]].key for each in said] == [3, 5, 3]
    assert all(call.end - call.begin >= 0.4 * LATENCY for call in server.log.calls.values())
    assert list(server.log.answered) == [3, 5]


def test_the_service_fails_when_it_is_told_to(server: Server) -> None:
    server.command("fail", 60)
    with pytest.raises(urllib.error.HTTPError, match="503") as failed:
        ask(server, 1)
    failed.value.close()
    server.command("ok", 0)
    assert ask(server, 1)["answer"] == 3
    assert ended(server, 2) == ["fail", "ok"]


def test_the_service_resets_connections_those_of_calls_that_it_has_as_well(server: Server) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            server.command("hang", 60)
            waiting = asyncio.create_task(session.post(f"{server.url}/call/1"))
            while 1 not in server.log.calls:
                await asyncio.sleep(0)
                server.log.read()
            await asyncio.to_thread(server.command, "reset", 60)
            with pytest.raises(aiohttp.ClientConnectionError):
                await waiting
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.post(f"{server.url}/call/2")

    asyncio.run(main())
    # The client asks once more by itself when a connection that it has used before ends.
    assert set(ended(server, 2)) == {"reset"}


def test_a_call_whose_client_leaves_is_written_down_as_gone(server: Server) -> None:
    server.command("hang", 60)
    with pytest.raises(TimeoutError):
        ask(server, 1, patience=0.05)
    assert ended(server, 1) == ["gone"]


def test_the_dice_of_the_service_depend_on_seed_key_and_call_only(tmp_path: Path) -> None:
    outcomes = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Server(folder, 7, latency=0.001, badness=0.9) as server:
            with ThreadPoolExecutor(12) as clients:
                for key in range(12):
                    clients.submit(ask, server, key, patience=0.5)
            ended(server, 12)
            outcomes.append({call.key: call.outcome for call in server.log.calls.values()})
    assert outcomes[0] == outcomes[1]
    assert set(Counter(outcomes[0].values())) == {"ok", "fail", "gone", "reset"}


def test_the_clock_of_the_wall_is_stepped_in_processes_that_run_and_no_other_clock(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "for _ in sys.stdin:\n"
        "    print(time.time(), time.time_ns() / 1e9, time.monotonic(), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def clocks() -> list[float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("now\n")
            process.stdin.flush()
            return [float(word) for word in process.stdout.readline().split()]

        before = clocks()
        set_clock(tmp_path, -7200)
        after = clocks()
        set_clock(tmp_path, 0)
        again = clocks()
    steps = [round((b - a) / 3600) for a, b in zip(before, after, strict=True)]
    assert steps == [-2, -2, 0]
    assert [round((b - a) / 3600) for a, b in zip(before, again, strict=True)] == [0, 0, 0]


def test_a_small_disk_is_full_and_has_room_again(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 2**20) as disk:
        if disk.reason:
            pytest.skip(f"no file system can be mounted here: {disk.reason}")
        assert 0 < disk.fill() <= 2**20
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "more").write_bytes(b"x" * 4096)
        disk.free()
        (disk.folder / "more").write_bytes(b"x" * 4096)


def test_a_plan_depends_on_its_seed_and_number_only() -> None:
    plans = [plan_run(3, number, cluster=True) for number in range(40)]
    assert plans == [plan_run(3, number, cluster=True) for number in range(40)]
    assert plans[0].faults != plan_run(4, 0, cluster=True).faults
    assert {planned.kind for plan in plans for planned in plan.faults} == set(FAULTS)
    assert {plan.ordered for plan in plans} == {True, False}
    assert {plan.kind for plan in plans} == set(KINDS)
    assert all(0 < planned.share < 1 for plan in plans for planned in plan.faults)
    assert {plan.checkpoint_format for plan in plans} == {2}
    local = [plan_run(3, number, cluster=False) for number in range(40)]
    assert {plan.checkpoint_format for plan in local} == {1, 2}


def test_only_processes_that_are_there_and_go_on_can_be_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        assert processes.not_stopped([process]) == [process]
        process.suspend()
        while process.status() != psutil.STATUS_STOPPED:
            pass
        assert processes.not_stopped([process]) == []
        child.kill()
        child.wait()
        assert processes.not_stopped([process]) == []


def test_what_a_killed_java_process_was_about_to_start_is_found(tmp_path: Path) -> None:
    helper = tmp_path / "jspawnhelper"
    shutil.copy(shutil.which("sleep") or "sleep", helper)
    # As a driver does that is killed: what it has started lives on, and holds its output open.
    with subprocess.Popen(
        ["sh", "-c", f"{helper} 60 & echo $!"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        driver.wait()
        (left,) = (process for process in processes.left_unstarted() if process.pid == pid)
        processes.kill([left])
        assert driver.stdout.read() == b""


def test_the_stacks_of_a_process_that_hangs_name_the_function(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "def waits_for_ever():\n"
        "    print('hangs', flush=True)\n"
        "    time.sleep(1000)\n"
        "waits_for_ever()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hangs\n"
        said = dump_stacks([psutil.Process(process.pid)], tmp_path)
        process.kill()
    assert "waits_for_ever" in said
    assert f"process {process.pid}" in said


def test_what_is_written_about_runs_is_read_again(tmp_path: Path) -> None:
    plan = plan_run(3, 1, cluster=False)
    verdict = Verdict(answered=100, in_window=4, oldest=0.1)
    fired = [Fired("worker", 1.0, 2.0, "77", True, {5}, {40})]
    outcome = Outcome(plan, "ledger", "local", verdict, fired, [("worker", 1.5)], 9.0, 1, [1.0, 2.0])
    path = tmp_path / "runs.jsonl"
    path.write_text((json_line(outcome) + "\n") * 3)
    again = read_runs(path)
    assert len(again) == 3
    assert again[0].plan.seed == plan.seed
    assert summary(again) == summary([outcome] * 3)
    assert summary(again)["repeated for a fault"] == 4.0
    assert summary(again)["recovery, median, s"] == 1.5


def test_the_report_says_which_calls_each_allowance_has_excused() -> None:
    plan = plan_run(3, 1, cluster=False)
    verdict = Verdict(excused={"worker: slack": [7, 9], "worker: loss window": [1, 2, 3, 4, 5, 6]})
    outcome = Outcome(plan, "ledger", "local", verdict, [], [], 9.0, 1, [])
    by_hand = Outcome(plan, "gather", "local", verdict, [], [], 9.0, 1, [])
    said = [" ".join(line.split()) for line in excused([outcome, by_hand])]
    assert said[1:] == [
        "worker: loss window 6 local run 1: 1, 2, 3, 4, 5, ...",
        "worker: slack 2 local run 1: 7, 9",
    ]
    assert excused([by_hand]) == ["no call is excused"]


def write(path: Path, *ids: int) -> Path:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": row, "answer": 2 * row + 1, "call": row + 1} for row in ids]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_of_a_batch_only_what_is_committed_counts(tmp_path: Path) -> None:
    write(tmp_path / "part-00000-a.parquet", 1, 0)
    assert committed_rows(tmp_path) == []
    (tmp_path / "_SUCCESS").touch()
    assert committed_rows(tmp_path) == [[Row(1, 3, 2), Row(0, 1, 1)]]


def test_of_a_stream_what_its_log_names_counts_in_its_compact_form_too(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"part-{number}.parquet", number) for number in range(4)]
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    lines = [json.dumps({"path": path.as_uri(), "action": "add"}) for path in paths]
    (log / "0").write_text("v1\n" + lines[0])
    assert committed_rows(tmp_path) == [[Row(0, 1, 1)]]
    (log / "9.compact").write_text("v1\n" + "\n".join(lines[:2]))
    (log / "10").write_text("v1\n" + lines[2])
    # The last file was written by an attempt that came to nothing.
    assert [file[0].id for file in committed_rows(tmp_path)] == [0, 1, 2]


def test_of_a_sink_with_a_folder_for_each_micro_batch_the_whole_ones_count_in_their_order(
    tmp_path: Path,
) -> None:
    assert committed_batches(tmp_path) == {}
    for batch in (10, 9, 11):
        (tmp_path / str(batch)).mkdir()
        write(tmp_path / str(batch) / "part-00000-a.parquet", batch + 1, batch)
    for batch in (9, 10):
        (tmp_path / str(batch) / "_SUCCESS").touch()
    assert [[row.id for row in file] for file in committed_rows(tmp_path)] == [[10, 9], [11, 10]]
    batches = committed_batches(tmp_path)
    assert {batch: [row.id for row in rows] for batch, rows in batches.items()} == {
        9: [9, 10],
        10: [10, 11],
        11: [],
    }


def test_the_ledger_is_read_for_the_calls_that_it_has(tmp_path: Path) -> None:
    assert durable_calls(tmp_path / "ledger") == set()
    ledger, make_key = Ledger(str(tmp_path / "ledger")), KeyMaker()
    for run in ("one", "two"):
        with ledger.writer(Scope(run, "uid")) as writer:
            writer.append(make_key(run), {"answer": 1, "call": len(run) if run == "two" else 8})
    assert durable_calls(tmp_path / "ledger") == {3, 8}
