"""A key of a client is nowhere but in the requests of Spark's workers: the test greps for it."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.spark.conftest import ScriptRunner

pytest.importorskip("pyspark", reason="PySpark is not installed")


@pytest.mark.contract
def test_a_key_is_in_no_plan_event_log_file_ledger_report_or_error_of_a_job(
    run_script: ScriptRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, second = (f"key-{secrets.token_hex(12)}" for _ in range(2))
    monkeypatch.setenv("KEY_OF_THE_TEST", key)
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "second").write_text(second)
    written = tmp_path / "written"
    (written / "events").mkdir(parents=True)
    lines = run_script(
        """
        import asyncio, contextlib, os, sys, threading
        from pathlib import Path
        from pillarbox import Errors, Ledger
        from pillarbox.clients import Embeddings, Secret
        from pillarbox.spark import async_map, async_udf
        from tests.clients.embedding_service import Service, serving

        second_file, written = sys.argv[1:]
        key, second = os.environ["KEY_OF_THE_TEST"], Path(second_file).read_text()
        service, loop = Service(key=("Authorization", f"Bearer {key}")), asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        stack = contextlib.AsyncExitStack()
        asyncio.run_coroutine_threadsafe(stack.enter_async_context(serving(service)), loop).result()

        headers = {"X-Second": Secret.file(second_file)}
        client = Embeddings(f"{service.url}/v1", "e5", key=Secret.env("KEY_OF_THE_TEST"), headers=headers)
        df = spark.createDataFrame([(n, f"text {n}") for n in range(6)], "id long, text string")

        vectors = df.withColumn("vector", async_udf(client)("text"))
        vectors.write.parquet(f"{written}/vectors")
        print("vectors", vectors.where("size(vector) = 384").count())
        print(vectors._jdf.queryExecution().toString())

        # A service that quotes the key that it refuses.
        service.key = ("Authorization", "Bearer another")
        try:
            df.withColumn("vector", async_udf(client)("text")).collect()
        except Exception as error:
            print("error", "***" in str(error), str(error))

        async def embed(row):
            async with client:
                return {"vector": await client(row.text)}

        errors = Errors("column", dead_letter=f"{written}/dead")
        rows = async_map(df, embed, schema="vector array<float>", keep=["id"], errors=errors,
                         ledger=Ledger(f"{written}/ledger", uid="map", run="1", key=["id"]))
        for row in rows.collect():
            print("row", row)
        print("keys sent", sum(second == headers["X-Second"] for headers in service.headers) > 6)
        files = [path for path in Path(written).rglob("*") if path.is_file()]
        print("files", len(files) > 10)
        for path in files:
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                # Spark deletes blocks that no job needs any more.
                continue
            if any(each.encode() in content for each in (key, second)):
                print("found in", path)
        """,
        str(keys / "second"),
        str(written),
        settings={
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{written}/events",
            "spark.local.dir": f"{written}/local",
        },
        alone=True,
        timeout=360,
    )
    output = "\n".join(lines)
    assert "vectors 6" in lines
    assert "keys sent True" in lines
    assert "files True" in lines
    assert "error True" in output
    assert output.count("row Row(") == 6
    assert "found in" not in output
    assert key not in output
    assert second not in output
    # After the session's end too: the event log is complete then.
    files = [path for path in written.rglob("*") if path.is_file()]
    assert any(path.is_relative_to(written / "events") for path in files)
    contents = b"".join(path.read_bytes() for path in files)
    assert not any(each.encode() in contents for each in (key, second))
