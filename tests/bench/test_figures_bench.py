"""The figures of README: the service that counts what is paid for, and the file that the pages read."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from bench.clients.contenders import texts
from bench.figures import figures
from bench.killed.__main__ import main
from bench.killed.jobs import JOBS
from bench.killed.server import CountingServer


def ask(url: str, asked: list[str]) -> int:
    """The number of vectors that a service gives for texts."""
    body = json.dumps({"model": "any", "input": asked}).encode()
    with urlopen(Request(f"{url}/v1/embeddings", data=body)) as answer:
        return len(json.load(answer)["data"])


def test_the_service_counts_each_text_that_it_is_asked_for_and_those_it_answered() -> None:
    rows = texts(3)
    with CountingServer(0.001, rows) as server:
        half = server.watch(2)
        assert ask(server.url, ["a probe"]) == 1
        assert not half.is_set()
        assert ask(server.url, rows[:2]) == 2
        assert half.wait(20)
        assert ask(server.url, rows[:1]) == 1
        assert server.asked == {rows[0]: 2, rows[1]: 1}
        assert server.answered == {rows[0], rows[1]}


def test_the_figures_have_all_rounds_of_each_contender() -> None:
    clients = {"a": {"cpu": [1.234, 2.0], "server": [0.0], "rate": [1.0]}, "failed": {"b": "no package"}}
    found = {
        "clients": {
            "machine": {"load": 1.0},
            **dict.fromkeys(("embeddings", "lookups", "questions"), clients),
        },
        "through_spark": {"machine": {"load": 2.0}, "worker": {"embed": [3.0]}},
        "killed": {
            "machine": {"load": 3.0},
            "jobs": {
                "ledger": {"paid twice": [0, 64], "answered before the kill": [5, 6], "in flight": [1, 1]}
            },
        },
    }
    written = figures(found)
    assert {name: machine["load"] for name, machine in written["machines"].items()} == {
        "clients": 1.0,
        "through_spark": 2.0,
        "killed": 3.0,
    }
    assert written["figures"]["vector"] == {"a": [1.23, 2.0]}
    assert written["figures"]["killed"] == {"ledger": [0, 64]}


@pytest.mark.slow
@pytest.mark.spark
def test_a_killed_job_with_a_ledger_pays_for_less_than_half_of_its_answers_again(tmp_path: Path) -> None:
    assert main(["--rounds", "1", "--rows", "1920", "--contenders", "ledger", "--out", str(tmp_path)]) == 0
    ((name, job),) = json.loads((tmp_path / "killed.json").read_text())["jobs"].items()
    assert name in JOBS
    assert job["answered before the kill"][0] >= 960
    assert job["paid twice"][0] * 2 < job["answered before the kill"][0]
