"""The benchmark of the clients, with few rows: its server, its check of results, its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.clients.__main__ import REQUIREMENTS, main
from bench.clients.contenders import EMBEDDINGS, ENVIRONMENTS, LOOKUPS, Job, check
from bench.clients.server import vectors


def test_the_clients_are_measured_and_their_results_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--rows", "130", "--rounds", "1", "--out", str(tmp_path)]
    assert main([*few, "--contenders", "libcurl", "a loop: aiohttp", "asyncopenai"]) == 0
    found = json.loads((tmp_path / "clients.json").read_text())
    assert set(found["embeddings"]) == {
        *("Embeddings, libcurl", "AsyncOpenAI", "a loop: aiohttp, json, lists", "failed")
    }
    assert all(len(found["lookups"][name]["cpu"]) == 1 for name in LOOKUPS if "libcurl" in name)
    assert "AsyncOpenAI, parse" in found["questions"] and not found["questions"]["failed"]
    assert "CPU, us a vector" in capsys.readouterr().out


def test_a_wrong_result_is_told() -> None:
    with pytest.raises(ValueError, match="1 results for 2 rows"):
        check(Job("HttpLookup, libcurl", "", 2), [{"id": 0}])
    with pytest.raises(ValueError, match="results of other rows"):
        check(Job("HttpLookup, libcurl", "", 2), [{"id": 1}, {"id": 0}])
    assert len({tuple(vector) for vector in vectors()}) == len(vectors())


def test_each_rival_has_its_requirements() -> None:
    assert {*ENVIRONMENTS} < {*EMBEDDINGS}
    for name in ENVIRONMENTS.values():
        lines = (REQUIREMENTS / f"{name}.txt").read_text().splitlines()
        assert all("==" in line or line.startswith("#") for line in lines)
