"""The comparison with peers: jobs are timed, answers checked, and a peer that fails is told, not left out."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

pytest.importorskip("matplotlib", reason="the plots need matplotlib")

from bench import service
from bench.cpu import tree_time
from bench.peers.contenders import CONTENDERS, Contender
from bench.peers.costs import Sampler, growth, peak
from bench.peers.environments import EnvironmentFailed
from bench.peers.http import Server
from bench.peers.jobs import Job, read_marks
from bench.peers.measure import Ask, Result, run_all
from bench.peers.process import PeerFailed, PeerProcess, Peers
from bench.peers.report import report
from bench.peers.serve import check
from bench.peers.targets import memory_verdicts, tail_verdict, throughput_verdicts

WORKERS = Contender("asyncio, fixed workers", "local", "fixed workers", (False,))
OURS = "pillarbox.spark.async_map"
LONG = 600.0
"""Seconds that a peer may take for a job."""


def job(rows: int, **more: object) -> Job:
    return Job("any", "service", rows, 8, True, "unused", **more)  # type: ignore[arg-type]


def asked(contender: str, rows: int, capacity: int = 8, workload: str = "service") -> dict[str, object]:
    return {
        "contender": contender,
        "workload": workload,
        "rows": rows,
        "capacity": capacity,
        "ordered": False,
    }


def result(name: str, rate: float, **more: object) -> Result:
    rows = 10_000
    made = Result(name, "service", False, 256, rows, ours="pillarbox" in name)
    made.seconds, made.job_seconds = [rows / rate], [rows / rate]
    made.cpu = [{"python": 1.0, "java": 2.0, "other": 0.5}]
    made.empty = [{"python": 0.0, "java": 0.0, "other": 0.0}]
    for key, value in more.items():
        setattr(made, key, value)
    return made


def cpu(python: float, java: float) -> dict[str, float]:
    """Of 10,000 rows, from microseconds a row."""
    return {"python": python / 100, "java": java / 100, "other": 0.0}


def answers_of(*rows: int) -> list[int]:
    return [service.answer(row) for row in rows]


def test_right_answers_in_order_are_found_right() -> None:
    found = check(job(3), ([0, 1, 2], answers_of(0, 1, 2)))
    assert found == {"answers": 3, "wrong": 0, "missing": 0, "twice": 0, "in_order": True}


def test_an_answer_beside_another_row_is_wrong() -> None:
    assert check(job(3), ([0, 1, 2], answers_of(0, 2, 1)))["wrong"] == 2


def test_an_answer_that_nobody_gave_is_wrong() -> None:
    assert check(job(2), (None, [1, 4]))["wrong"] == 1


def test_answers_that_are_missing_or_there_twice_are_counted() -> None:
    found = check(job(4), (None, answers_of(0, 1, 1)))
    assert (found["missing"], found["twice"]) == (2, 1)


def test_answers_out_of_order_are_seen() -> None:
    assert not check(job(3), ([0, 2, 1], answers_of(0, 2, 1)))["in_order"]


def test_marks_are_empty_until_the_last_call_has_ended(tmp_path: Path) -> None:
    marks = str(tmp_path / "marks")
    Path(marks + ".first").write_text("1000000000")
    assert read_marks(marks) == {}
    Path(marks + ".last").write_text(json.dumps({"at": 3_500_000_000, "most": 7}))
    assert read_marks(marks) == {"seconds": 2.5, "most": 7}


def test_one_call_in_a_hundred_is_slow() -> None:
    slow = [row for row in range(20_000) if service.tail_latency(row) > service.latency(row)]
    assert 150 <= len(slow) <= 250
    assert {service.tail_latency(row) for row in slow} == {100 * service.MEAN}


def test_an_ideal_window_of_one_is_one_call_after_the_other() -> None:
    assert service.ideal(50, 8, 1) == pytest.approx(service.ceiling(50, 1))


def test_an_ideal_window_gives_more_the_larger_it_is_and_never_more_than_the_ceiling() -> None:
    rates = [service.ideal(8_192, 256, 256 * factor, service.tail_latency) for factor in (1, 2, 4, 8)]
    assert rates == sorted(rates)
    assert rates[-1] > 5 * rates[0]
    assert rates[-1] <= service.ceiling(8_192, 256, service.tail_latency)


@pytest.mark.parametrize("contender", ["fixed workers", "semaphore window", "ordered window", "async_map"])
def test_a_peer_does_a_job_and_says_what_it_took(contender: str, tmp_path: Path) -> None:
    with PeerProcess(Path(sys.executable), "bench.peers.run_local", tmp_path / "log") as peer:
        done = peer.run(asked(contender, 400), LONG)
    assert (done["answers"], done["wrong"], done["missing"], done["twice"]) == (400, 0, 0, 0)
    assert 1 <= done["most"] <= 8
    assert 0 < done["seconds"] <= done["job_seconds"]
    # The service alone takes that long, with eight calls in flight.
    assert done["seconds"] >= 400 / service.ceiling(400, 8)
    assert sum(done["cpu"].values()) > 0


def test_a_peer_that_raises_is_told_and_can_be_asked_again(tmp_path: Path) -> None:
    with PeerProcess(Path(sys.executable), "bench.peers.run_local", tmp_path / "log") as peer:
        with pytest.raises(PeerFailed, match="KeyError: 'nobody'"):
            peer.run(asked("nobody", 1), LONG)
        assert peer.run(asked("fixed workers", 10), LONG)["answers"] == 10


def test_a_peer_that_does_not_end_its_job_is_ended(tmp_path: Path) -> None:
    with PeerProcess(Path(sys.executable), "bench.peers.run_local", tmp_path / "log") as peer:
        with pytest.raises(PeerFailed, match="no answer within 1 s"):
            peer.run(asked("fixed workers", 10_000, capacity=1), 1.0)
        assert not peer.alive


def test_a_peer_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="it ended with status 1; see .*log"):
        PeerProcess(Path(sys.executable), "bench.peers.run_nothing", tmp_path / "log").__enter__()
    assert "run_nothing" in (tmp_path / "log").read_text()


def test_a_peer_without_an_environment_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    def python_of(peer: str) -> Path:
        if peer != "local":
            raise EnvironmentFailed("no such package")
        return Path(sys.executable)

    missing = Contender("Missing", "ray", "map", (True,))
    asks = [Ask(each, "service", False, 8, 50) for each in (missing, WORKERS)]
    said: list[str] = []
    with Peers(python_of, tmp_path) as peers:
        failed, good = run_all(asks, peers, 2, LONG, said.append)
    assert failed.failed == "no such package"
    assert not failed.seconds
    assert len(good.seconds) == 2
    assert good.remarks == []
    assert sum("FAILED: no such package" in each for each in said) == 1


def test_processes_that_have_ended_count_in_the_tree() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); "
        "print('done', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        before = tree_time(psutil.Process(process.pid))
        assert process.stdout is not None
        process.stdout.readline()
        used = tree_time(psutil.Process(process.pid)) - before
        process.communicate()
    assert used.python >= 0.25
    assert used.total == pytest.approx(used.python)


def test_the_http_server_gives_each_row_its_own_answer_and_ends() -> None:
    with Server() as server:
        for row in (0, 7):
            with urllib.request.urlopen(f"{server.url}/{row}", timeout=10) as answer:
                assert int(answer.read()) == service.answer(row)
    assert server._process.returncode == 0


def test_the_memory_of_the_largest_process_is_seen() -> None:
    hold = "x = bytearray(80_000_000); print('there', flush=True); import sys; sys.stdin.read()"
    command = [sys.executable, "-c", hold]
    sampler = Sampler(psutil.Process())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sampler.look()
        process.communicate()
    assert peak(sampler.samples) >= 80


def test_growth_is_what_the_end_holds_more_than_the_second_quarter() -> None:
    assert growth([(float(second), 100.0 + second) for second in range(100)]) == pytest.approx(50.0)
    assert growth([(float(second), 100.0) for second in range(100)]) == 0.0


@pytest.mark.parametrize(("share", "met"), [(0.935, False), (0.945, True)])
def test_a_share_meets_its_target_or_misses_it(share: float, met: bool) -> None:
    ours = result(OURS, share * service.ceiling(10_000, 256))
    first = next(iter(throughput_verdicts([ours])))
    assert (first.target, first.measured, first.met) == ("94%", f"{share:.1%}", met)


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert {verdict.met for verdict in throughput_verdicts([])} == {None}


def test_one_peer_that_is_ahead_misses_the_target() -> None:
    results = [result(OURS, 11_000), result("Pathway, async", 4_000), result("Pathway, fully async", 11_500)]
    ahead = [each for each in throughput_verdicts(results) if each.target == "ahead of each"]
    assert [each.met for each in ahead] == [False, None]


def test_a_peer_that_breaks_the_limit_is_told_but_not_a_measure() -> None:
    cheat = result("Daft, max_concurrency", 40_000, found={"most": 5_000})
    ahead = [each for each in throughput_verdicts([result(OURS, 11_000), cheat]) if "ahead" in each.target]
    assert ahead[0].met
    assert "Daft, max_concurrency breaks the limit" in ahead[0].measured
    assert cheat.remarks == ["5,000 calls in flight"]


def test_pyflink_is_judged_by_its_faster_and_its_cheaper_way() -> None:
    instant = {"workload": "instant"}
    results = [
        result(OURS, 9_000, **instant, cpu=[cpu(10, 2)]),
        result("PyFlink, defaults", 5_000, **instant, cpu=[cpu(50, 60)]),
        result("PyFlink, large bundles", 4_000, **instant, cpu=[cpu(90, 60)]),
    ]
    found = throughput_verdicts(results)
    rate, part = [each for each in found if "as finished, against PyFlink" in each.work]
    assert (rate.met, rate.measured[:6]) == (False, "1.80 x")
    assert (part.met, part.measured[:7]) == (False, "0.109 x")


def test_the_default_window_is_compared_with_one_as_large_as_the_capacity() -> None:
    small = result(OURS, 200, workload="tail", ordered=True, reorder=256)
    default = result(OURS, 1_100, workload="tail", ordered=True)
    other = result("Ray Data map", 5_000, workload="tail", ordered=True)
    assert tail_verdict([small, default, other]).met
    assert not tail_verdict([small, result(OURS, 900, workload="tail", ordered=True), other]).met


@pytest.mark.parametrize(
    ("sizes", "met"),
    [([300.0] * 8, True), ([350.0] * 8, False), ([200.0] * 4 + [240.0] * 4, False)],
    ids=["small and flat", "large", "growing"],
)
def test_memory_has_to_be_small_and_flat(sizes: list[float], met: bool) -> None:
    samples = {"identity": [(0.0, 120.0)], "async_map": list(enumerate(sizes))}
    (verdict,) = memory_verdicts(samples, 1_000)  # type: ignore[arg-type]
    assert verdict.met is met


def test_every_contender_has_a_program() -> None:
    import bench.peers

    programs = Path(bench.peers.__file__).parent
    assert all((programs / f"run_{contender.peer}.py").exists() for contender in CONTENDERS)


def test_a_report_of_one_run_says_what_failed_and_what_was_missed(tmp_path: Path) -> None:
    good = result(OURS, 11_000, found={"most": 256, "in_order": True})
    bad = result("Ray Data map", 1.0, seconds=[], cpu=[], failed="no such package")
    measured = {
        "machine": {"python": "3.11", "system": "Linux", "processors": 2, "load": 0.5},
        "quick": True,
        "sizes": {"256": 10_000, "1000": 20_000, "rounds": 1, "memory": 1_000},
        "versions": {"spark": "PySpark 4"},
        "failed": {},
        "throughput": [vars(good), vars(bad)],
        "own": {"identity": [0.2], "async_map, as finished": [7.0, 9.5, 9.0]},
    }
    text = report(json.loads(json.dumps(measured)), tmp_path)
    assert "- Ray Data map, service, 256: no such package" in text
    assert "| service that returns at once: async_map, as finished | us a row, Python worker | 8 us |" in text
    assert "| 9.0 us (7.0 to 9.5) | **missed** |" in text
    assert (tmp_path / "peers_service_256.svg").stat().st_size > 1_000


def test_cpu_is_less_what_a_job_of_one_row_takes() -> None:
    made = result(OURS, 1_000, cpu=[cpu(30, 9), cpu(20, 8), cpu(900, 0)], empty=[cpu(5, 1)])
    assert made.cpu_of() == pytest.approx(33.0)
    assert made.cpu_of("java") == pytest.approx(7.0)
