"""Jars of Maven Central, for the servers of the tests: `Jars`. Any thread.

They are fetched once, with the Ivy that PySpark ships, which reads the poms and compares the checksums. What
has come is compared with a pinned digest each time. They stay below `build/`.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JAVA_TIMEOUT_S = 60.0
FETCH_TIMEOUT_S = 150.0


class JarsMissingError(Exception):
    """There are no such jars here; its text says why."""


def java() -> str:
    """The command of Java, found as the Makefile finds it. Skips the test, with the reason, without one."""
    try:
        return _java()
    except JarsMissingError as error:
        pytest.skip(str(error))


def _java() -> str:
    script = [sys.executable, "-m", "pillarbox", "java-home"]
    found = subprocess.run(script, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S)
    if found.returncode:
        raise JarsMissingError(found.stderr.strip() or "no Java here")
    return str(Path(found.stdout.strip(), "bin", "java"))


@dataclass(frozen=True)
class Jars:
    """The jars of some modules and of all that these need.

    place: a folder below `build/`. modules: "organisation name version" each. digest: SHA-256 over the names
    and digests of all files, in the order of their names. kind: of the files: "jar" or "zip".
    """

    place: str
    modules: list[str]
    digest: str
    kind: str = "jar"

    def folder(self) -> Path:
        """The folder of the jars, fetched if it is not there. Raises JarsMissingError."""
        folder = ROOT / "build" / self.place
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
                self._fetch(Path(scratch))
                self._check(Path(scratch, "jars"))
                # Another process may have been quicker.
                with contextlib.suppress(OSError):
                    Path(scratch, "jars").replace(folder)
        self._check(folder)
        return folder

    def folder_or_skip(self) -> Path:
        """As `folder`; skips the test, with the reason, where the jars cannot be had."""
        try:
            return self.folder()
        except JarsMissingError as error:
            pytest.skip(str(error))

    def _check(self, folder: Path) -> None:
        digests = {
            jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob(f"*.{self.kind}")
        }
        lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
        found = hashlib.sha256(lines.encode()).hexdigest()
        if found != self.digest:
            raise JarsMissingError(f"{folder}: its digest is {found}, not that of {self.place}; remove it")

    def _fetch(self, scratch: Path) -> None:
        pyspark = find_spec("pyspark")
        places = Path(pyspark.origin).parent / "jars" if pyspark and pyspark.origin else scratch
        ivy = sorted(places.glob("ivy-*.jar"))
        if not ivy:
            raise JarsMissingError("jars are fetched with PySpark's Ivy, and PySpark is not installed")
        for module in self.modules:
            command = [_java(), "-jar", str(ivy[-1]), "-cache", str(scratch / "cache"), "-confs", "default"]
            command += ["-dependency", *module.split()]
            command += ["-retrieve", str(scratch / "jars" / "[artifact]-[revision].[ext]")]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, stdin=subprocess.DEVNULL
                )
            except subprocess.TimeoutExpired as error:
                raise JarsMissingError(f"fetching {module} took more than {error.timeout} s") from None
            if done.returncode or not (scratch / "jars").is_dir():
                last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
                raise JarsMissingError(f"{module} could not be fetched from Maven Central\n{last}")


KAFKA_VERSION = "4.1.1"
KAFKA = Jars(
    f"kafka/{KAFKA_VERSION}",
    [f"org.apache.kafka kafka_2.13 {KAFKA_VERSION}"],
    "393b6183ea30541e740d0c3b0ac8a681298e703cb63da7602a9fcf4df3ad0aa6",
)
DEBEZIUM = Jars(
    "debezium/3.3.1",
    [
        f"org.apache.kafka connect-runtime {KAFKA_VERSION}",
        "io.debezium debezium-connector-postgres 3.3.1.Final",
    ],
    "9c0ec84f417ad7ec0f0f688d1689ddb316077b006911b66906b3699fcf87d790",
)
"""Kafka Connect, Debezium's connector for PostgreSQL, and the JDBC driver that it uses."""
SPARK_KAFKA = Jars(
    "spark-kafka/4.2.0",
    ["org.apache.spark spark-sql-kafka-0-10_2.13 4.2.0"],
    "6b9357d7d5e89ef9d1543eb2820f497af7b13fdbeaac2aa494b785bae3bd08d1",
)
"""Spark's own source for Kafka, which measurements compare with; it runs in PySpark 4.3 too."""
POSTGRES_DRIVER = Jars(
    "postgresql/42.7.7",
    ["org.postgresql postgresql 42.7.7"],
    "d8222118108bb927fe75e181e9411a7d31199feda3ac9ae8aaa315948c11c5e4",
)
"""The JDBC driver of PostgreSQL, without the Debezium that brings it too."""
OPENSEARCH_VERSION = "2.19.1"
OPENSEARCH = Jars(
    f"opensearch/{OPENSEARCH_VERSION}/core",
    [
        f"org.opensearch opensearch {OPENSEARCH_VERSION}",
        f"org.opensearch opensearch-plugin-classloader {OPENSEARCH_VERSION}",
        "org.apache.logging.log4j log4j-core 2.21.0",
    ],
    "dc1b7f5d885565d5289f61a18bfc4af340cbe1b030b2f3bd451f864986fb3d06",
)
OPENSEARCH_HTTP = Jars(
    f"opensearch/{OPENSEARCH_VERSION}/http",
    [f"org.opensearch.plugin transport-netty4-client {OPENSEARCH_VERSION}"],
    "22563652233dd75fd49f44edf189b7f473dc773c9b410d479afdc2bf55357871",
)
OPENSEARCH_PAINLESS = Jars(
    f"opensearch/{OPENSEARCH_VERSION}/painless",
    [f"org.opensearch.plugin lang-painless {OPENSEARCH_VERSION}"],
    "4edd6767143687e6093132691e95e089c64a75432c38386712b17e00f5202b7c",
)
"""Scripts, which the plugin for vectors extends. It brings the core too."""
OPENSEARCH_KNN = Jars(
    f"opensearch/{OPENSEARCH_VERSION}/knn",
    [f"org.opensearch.plugin opensearch-knn {OPENSEARCH_VERSION}.0"],
    "8c64d1919b6c34908810786cf01e9da8763e3e035235c28888a23418d4b0e57b",
    kind="zip",
)
"""The plugin for vectors, without native libraries: it searches by Lucene."""


def main() -> None:
    """Fetch the jars, and print where they are."""
    try:
        print(KAFKA.folder(), DEBEZIUM.folder(), sep="\n")
    except JarsMissingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
