"""The check kit for connectors, run on ours, and on those that the documentation writes from nothing."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import threading
import unittest
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pillarbox.testing.source_suite import RULES, SourceSuite
from tests.servers import fixtures

pa = pytest.importorskip("pyarrow")

pytestmark = [pytest.mark.timeout(600)]

kafka, shared_redis, redis = fixtures.kafka, fixtures.shared_redis, fixtures.redis

ROWS = 60
TEXTS = [None, "", "1", "a", "a ", "A", "\u00e4", "a\u0308", "null", "1"]
NUMBERS = [1.0, None, 0.0, -0.0, 1.0000000000000002, 5e-324]
"""Values of rows that look alike: equal ones come again after 30."""


def alike(number: int) -> tuple[float | None, str | None]:
    return NUMBERS[number % len(NUMBERS)], TEXTS[number % len(TEXTS)]


def files(request: pytest.FixtureRequest, folder: Path) -> SourceSuite:
    """Lines of JSON in three files, cut into parts; some are equal, and some nearly."""
    from tests.sources.unit.settled import SettledFiles

    schema = pa.schema([("x", pa.float64()), ("text", pa.string())])

    def write(name: str, file: str, numbers: range, last: str = "") -> list[tuple[Any, ...]]:
        (folder / name).mkdir(exist_ok=True)
        rows = [alike(number) for number in numbers]
        lines = "".join(json.dumps({"x": x, "text": text}) + "\n" for x, text in rows)
        (folder / name / f"{file}.json").write_text(lines + last)
        return rows

    def source(name: str, **options: Any) -> Callable[[], Any]:
        return lambda: SettledFiles(
            folder / name, "json", schema, batch_bytes=200, split_bytes=400, **options
        )

    rows = [row for part in range(3) for row in write("made", f"{part}", range(20 * part, 20 * part + 20))]
    for name in ("lost", "followed", "bad"):
        write(name, "0", range(20))
    write("bad", "1", range(20, 30), '{"x": "n/a"}\n')

    def add() -> list[tuple[Any, ...]]:
        number = 100 * len([*(folder / "followed").iterdir()])
        return write("followed", f"{number}", range(number, number + 5))

    return SourceSuite(
        source("made"),
        rows=rows,
        follow=source("followed", discovery_interval=0.05),
        add=add,
        lost=source("lost"),
        lose=(folder / "lost" / "0.json").unlink,
        bad=(source("bad"), "n/a"),
    )


def topics(request: pytest.FixtureRequest, folder: Path) -> SourceSuite:
    """A topic of Kafka with two partitions, in which records are equal, and some have no value."""
    pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
    from pillarbox.sources.connectors.kafka import KafkaSource

    server = request.getfixturevalue("kafka")
    made, followed = (f"suite-{uuid.uuid4().hex}" for _ in range(2))
    schema = pa.schema([("partition", pa.int32()), ("value", pa.binary())])

    def produce(topic: str, first: int, count: int) -> list[tuple[Any, ...]]:
        texts = [TEXTS[n % len(TEXTS)] for n in range(first, first + count)]
        for partition in range(2):
            server.produce(topic, *texts, partition=partition)
        values = [None if text is None else text.encode() for text in texts]
        return [(partition, value) for partition in range(2) for value in values]

    for topic in (made, followed):
        server.create(topic, 2)
    rows = produce(made, 0, ROWS // 2)
    ends = [0]

    def add() -> list[tuple[Any, ...]]:
        ends[0] += 5
        return produce(followed, ends[0], 5)

    secret = "a-secret-of-the-suite"
    client = {**server.client, "ssl.key.password": secret}
    return SourceSuite(
        lambda: KafkaSource(client, made, schema=schema, bounded=True),
        rows=rows,
        follow=lambda: KafkaSource(client, followed, schema=schema, discovery_interval=0.05),
        add=add,
        secrets=[secret],
    )


def streams(request: pytest.FixtureRequest, folder: Path) -> SourceSuite:
    """Two streams of Redis, in which entries are equal."""
    pytest.importorskip("redis", reason="the package redis is not installed")
    from pillarbox.sources.connectors.redis_streams import RedisStreamSource

    server = request.getfixturevalue("redis")
    schema = pa.schema([("n", pa.int32()), ("text", pa.string())])

    def append(stream: str, first: int, count: int) -> list[tuple[Any, ...]]:
        entries = [(number % 2, TEXTS[number % len(TEXTS)] or "") for number in range(first, first + count)]
        for number, text in entries:
            server.command("XADD", stream, "*", "n", str(number), "text", text)
        return entries

    rows = append("made-a", 0, ROWS // 2) + append("made-b", 1000, ROWS // 2)
    append("followed", 0, 10)
    ends = [10]

    def add() -> list[tuple[Any, ...]]:
        ends[0] += 5
        return append("followed", ends[0], 5)

    return SourceSuite(
        lambda: RedisStreamSource(server.url, ["made-a", "made-b"], schema=schema, bounded=True),
        rows=rows,
        follow=lambda: RedisStreamSource(server.url, "followed", schema=schema, discovery_interval=0.05),
        add=add,
    )


@pytest.fixture(scope="session")
def worked() -> Any:
    """The connectors of `docs/sources.md`, as a module that their values can be pickled by."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "sources.md").read_text()
    (code,) = re.findall(r"```python\n((?:(?!```).)*class FeedSource\(.*?)```", page, re.DOTALL)
    module = sys.modules["worked_connectors"] = ModuleType("worked_connectors")
    exec(compile(code, "docs/sources.md", "exec"), module.__dict__)
    # So long each of its fetches of nothing waits, which take a check as many seconds.
    module.FeedSource.poll_interval = 0.25
    return module


Feeds = dict[str, list[dict[str, Any]]]


class FeedService(BaseHTTPRequestHandler):
    """The service of the documentation, for several sets of feeds: `/set/feed?from=7&most=100`."""

    sets: dict[str, Feeds]

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        _, place, name, *end = [*asked.path.split("/"), ""]
        feeds, query = self.sets[place], parse_qs(asked.query)
        answer: Any = sorted(feeds)
        if name and name not in feeds:
            answer = None
        elif query:
            first, most = int(query["from"][0]), int(query["most"][0])
            answer = [item for item in feeds[name] if item["id"] >= first][:most]
        elif end[0] == "end":
            answer = feeds[name][-1]["id"] + 1 if feeds[name] else 0
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args: Any) -> None:
        pass


def items(feed: str, numbers: range) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"{feed} {number}"} for number in numbers]


def pages(request: pytest.FixtureRequest, folder: Path) -> SourceSuite:
    """Pages of a service, over HTTP."""
    module = request.getfixturevalue("worked")
    made = {"north": items("north", range(130)), "south": items("south", range(115))}
    # Numbers that are missing, between and within pages.
    del made["south"][90:105]
    sets: dict[str, Feeds] = {
        "made": made,
        "lost": {"north": items("north", range(130))},
        "followed": {"north": items("north", range(120))},
        "bad": {"north": [*items("north", range(30)), {"id": 30, "words": "n/a"}]},
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Service", (FeedService,), {"sets": sets}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    request.addfinalizer(stop)
    url = f"http://127.0.0.1:{server.server_port}"

    def add() -> list[tuple[Any, ...]]:
        followed = sets["followed"]
        end = len(followed["north"])
        added = {"north": items("north", range(end, end + 4)), f"feed{end}": items("new", range(3))}
        followed["north"] += added["north"]
        followed[f"feed{end}"] = added[f"feed{end}"]
        return [(item["id"], feed, item["text"]) for feed, some in added.items() for item in some]

    return SourceSuite(
        lambda: module.FeedSource(f"{url}/made"),
        rows=[(item["id"], feed, item["text"]) for feed, some in made.items() for item in some],
        follow=lambda: module.FeedSource(f"{url}/followed", discovery_interval=0.05),
        add=add,
        lost=lambda: module.FeedSource(f"{url}/lost"),
        lose=sets["lost"].clear,
        bad=(lambda: module.FeedSource(f"{url}/bad"), "'text'"),
        options={"url": f"{url}/made"},
    )


def tables(request: pytest.FixtureRequest, folder: Path) -> SourceSuite:
    """A table of SQLite, in ranges of its row ids."""
    module = request.getfixturevalue("worked")

    def make(name: str) -> Callable[[], Any]:
        return lambda: module.SqliteSource(str(folder / f"{name}.db"), rows_per_split=15)

    def run(name: str, sql: str, *rows: tuple[Any, ...]) -> None:
        with closing(sqlite3.connect(folder / f"{name}.db")) as database, database:
            database.executemany(sql, rows or [()])

    numbers = [number for number in range(1, ROWS) if number % 7]
    for name in ("made", "lost", "bad"):
        run(name, "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)")
        run(name, "INSERT INTO people VALUES (?, 'name ' || ?)", *((number, number) for number in numbers))
    run("bad", "UPDATE people SET name = CAST(x'ff206e2f61' AS TEXT) WHERE id = 40")
    return SourceSuite(
        make("made"),
        rows=[(number, f"name {number}") for number in numbers],
        lost=make("lost"),
        lose=lambda: run("lost", "DROP TABLE people"),
        bad=(make("bad"), "n/a"),
        options={"path": str(folder / "made.db"), "rows_per_split": "15"},
    )


@pytest.mark.contract("Each connector of Pillarbox passes the check kit for connectors.")
@pytest.mark.parametrize("check", RULES)
@pytest.mark.parametrize(
    "suite",
    [
        files,
        pages,
        tables,
        pytest.param(topics, marks=[pytest.mark.server, pytest.mark.slow]),
        pytest.param(streams, marks=[pytest.mark.server, pytest.mark.slow]),
    ],
)
def test_a_connector_passes_the_check_kit(
    suite: Callable[[pytest.FixtureRequest, Path], SourceSuite],
    check: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    try:
        replace(suite(request, tmp_path), wake_within=60.0, timeout=120.0).check(check)
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))
