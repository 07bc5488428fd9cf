"""The measurements of the sources: each part runs and checks its answers, and what they say is told right."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.sources import __main__ as command
from bench.sources import files, micro_batches, splits
from bench.sources.by_hand import ConstantRows, HandConstant
from bench.sources.measure import Effort, Figure, Runs, Way, acknowledgements, rates, rounds
from tests.spark.queries import start
from tests.versions import needs_source_streams

TINY = Effort(rounds=1, size=0.001, warm_up=False)


def silent(text: str) -> None:
    """Say nothing."""


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    found = {figure.name: figure for figure in figures}
    assert len(found) == len(figures)
    return found


@pytest.mark.slow
def test_files_are_read_by_us_and_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    figures = by_name(files.measure(spark, tmp_path, TINY, silent, {"parquet": 2_000_000}))
    for what in files.FUNCTIONS:
        figure = figures[f"files, parquet, {what}"]
        assert figure.against == f"Spark's parquet, {what}"
        assert figure.ratios[0] == pytest.approx(figure.values[0] / figures[figure.against].values[0])
        constant = figures[f"constant batches, {what}"]
        assert constant.against == figure.against
        assert constant.ratios[0] > 0
        assert figures[f"files, parquet, {what}: held back a query"].values[0] >= 0


@pytest.mark.parametrize("kind", list(files.ROWS))
def test_files_are_read_by_us_and_by_pyarrow(kind: str, tmp_path: Path) -> None:
    place = files.write(tmp_path, kind, 1000)
    bare, ours = files.alone(kind, place, 1000, TINY, silent)
    assert ours.against == bare.name
    assert pa.Table.from_batches(files.read_bare(kind, place)).cast(files.SCHEMA) == files.table(1000)
    with pytest.raises(AssertionError, match="1000 instead of 999"):
        files.alone(kind, place, 999, TINY, silent)


@pytest.mark.slow
def test_a_file_with_other_rows_than_were_to_be_read_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = files.write
    monkeypatch.setattr(files, "write", lambda folder, kind, rows: write(folder, kind, rows - 1))
    with pytest.raises(AssertionError, match="instead of"):
        files.measure(spark, tmp_path, TINY, silent, {"parquet": 2_000_000})


@pytest.mark.slow
def test_redis_is_read_by_the_client_by_hand_and_by_us(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="the package redis is not installed")
    from bench.sources import redis_streams

    figures = by_name(redis_streams.measure(spark, tmp_path / "redis", TINY, silent))
    assert figures["redis in Spark"].against == "Spark, reader by hand"
    assert all(figure.values[0] > 0 and figure.per_core[0] > 0 for figure in figures.values())


@pytest.mark.slow
def test_kafka_is_read_by_the_client_by_hand_and_by_us(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
    from bench.sources import kafka_topics

    figures = by_name(kafka_topics.measure(spark, tmp_path / "kafka", TINY, silent))
    assert figures["kafka in Spark"].against == "Spark, reader by hand"
    assert all(figure.values[0] > 0 and figure.per_core[0] > 0 for figure in figures.values())


@pytest.mark.slow
@needs_source_streams
def test_a_micro_batch_is_measured_by_what_spark_says_of_it(spark: SparkSession, tmp_path: Path) -> None:
    figures = by_name(micro_batches.measure(spark, tmp_path, TINY, silent))
    whole = figures["above by hand"]
    hand, ours = figures["Spark, stream by hand"], figures["generator in Spark"]
    assert whole.values == [ours.values[0] - hand.values[0]]
    overhead = figures[micro_batches.OVERHEAD]
    parts = [figures[f"above by hand: {part}"] for part in micro_batches.SOURCE_PARTS]
    assert overhead.values == [sum(part.values[0] for part in parts)]
    assert overhead.met is (overhead.values[0] < 20.0)
    assert hand.values[0] > 0


@pytest.mark.slow
@needs_source_streams
def test_many_splits_are_read_whole_in_every_way(spark: SparkSession, tmp_path: Path) -> None:
    figures = by_name(splits.measure(spark, tmp_path / "splits", TINY, silent))
    assert {"Spark, batch, 10", "Spark, one micro-batch, 10", "StreamTasks, 10 by need"} <= set(figures)
    assert figures["the offset of a micro-batch, with its file"].values[0] > 10 * len('{"split_id":""}')


def test_ways_take_turns_in_an_order_that_turns_round() -> None:
    order: list[str] = []
    ways = [Way(name, lambda name=name: order.append(name)) for name in "ab"]
    found = rounds(ways, Effort(rounds=3), silent)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert [len(runs.seconds) for runs in found.values()] == [3, 3]


def test_a_ratio_says_how_many_times_as_many_rows_a_second_it_is() -> None:
    runs = {"base": Runs([2.0, 4.0], [1.0, 1.0]), "ours": Runs([1.0, 8.0], [2.0, 0.5])}
    base, ours = rates("part", runs, 8, {"ours": "base"})
    assert (base.values, base.ratios, base.per_core) == ([4.0, 2.0], [], [8.0, 8.0])
    assert (ours.values, ours.ratios, ours.core_ratios) == ([8.0, 1.0], [2.0, 0.5], [0.5, 2.0])


def test_acknowledgements_held_back_are_those_of_a_part_of_a_round() -> None:
    (found,) = acknowledgements("kafka", {"ours": Runs(held=[20, 5])}, 10, "a micro-batch")
    assert (found.name, found.unit, found.values) == ("ours: held back a micro-batch", "ACKs", [2.0, 0.5])


def test_constant_batches_are_as_many_rows_as_were_asked_for() -> None:
    batches = list(ConstantRows(["id", "text"], 4).of(10))
    assert [batch.num_rows for batch in batches] == [4, 4, 2]
    assert batches[2].to_pydict() == {"id": [7, 7], "text": ["row12345-5"] * 2}
    assert list(ConstantRows(["id"], 4).of(0)) == []


@pytest.mark.slow
@needs_source_streams
def test_a_stream_of_constant_batches_ends_with_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(HandConstant)
    options = {"columns": "value", "rows": 10, "at_once": 3, "limit": 4}
    read = spark.readStream.format("hand_constant").options(**options).load()
    query = start(
        read.writeStream.format("noop")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    assert query.awaitTermination(100)
    assert [each["numInputRows"] for each in query.recentProgress] == [4, 4, 2]


def test_a_round_whose_time_of_the_processors_is_lost_has_no_figure_a_core() -> None:
    runs = {"base": Runs([2.0, 4.0], [-1.0, 1.0]), "ours": Runs([1.0, 8.0], [2.0, 0.5])}
    base, ours = rates("part", runs, 8, {"ours": "base"})
    assert (base.per_core, ours.per_core, ours.core_ratios) == ([8.0], [4.0, 16.0], [2.0])
    assert (base.values, ours.ratios) == ([4.0, 2.0], [2.0, 0.5])


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command, with these figures for what is measured."""

    def run(*words: str, figures: list[Figure], **more: Any) -> int:
        monkeypatch.setattr("bench.sources.session.session", lambda *given: nullcontext())
        monkeypatch.setattr(command, "measure", lambda *given: figures)
        return command.main([*words, "--json", str(tmp_path / "out" / "sources.json")])

    return run


def test_the_command_keeps_the_parts_that_it_does_not_measure_and_says_what_is_missed(
    measured: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the plots need matplotlib")
    slow = Figure("splits", "many", "s", [9.0], target="at most 8 s", met=False)
    assert measured("splits", "--check", figures=[slow]) == 1
    assert "at most 8 s MISSED" in capsys.readouterr().out
    quick = Figure("redis", "ours", "rows/s", [9.0], against="theirs", ratios=[1.5], core_ratios=[1.5])
    assert measured("redis", "--check", figures=[quick]) == 0
    assert "MISSED" not in capsys.readouterr().out
    kept = json.loads((tmp_path / "out" / "sources.json").read_text())
    assert [(each["part"], each["values"]) for each in kept["figures"]] == [
        ("redis", [9.0]),
        ("splits", [9.0]),
    ]
    drawn = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.svg")}
    assert set(drawn) == {"sources_rates.svg"}
    assert "1.50 x" in drawn["sources_rates.svg"]


def test_a_part_whose_server_cannot_be_had_is_left_out_and_said(
    measured: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*given: Any) -> Any:
        pytest.skip("no server here")

    monkeypatch.setattr("bench.sources.session.session", lambda *given: nullcontext())
    monkeypatch.setattr(command, "measure", missing)
    assert command.run(["redis"], TINY, Path("nowhere") / "sources.json") == {"figures": []}
    assert "redis is left out: no server here" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--size", "0"], ["no-such-part"]])
def test_what_the_command_cannot_do_is_refused(
    words: list[str], measured: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        measured(*words, figures=[])
    assert words[-1] in capsys.readouterr().err


def test_the_rows_of_a_file_are_always_the_same() -> None:
    assert files.table(1000).equals(files.table(1000))
    assert files.table(1000).schema.equals(files.SCHEMA, check_metadata=False)
    assert isinstance(files.table(3).column("id"), pa.ChunkedArray)
