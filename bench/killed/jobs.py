"""The jobs that are killed: texts of a column to vectors in Parquet. Run in the environment of each.

`python -m bench.killed.jobs CONTENDER URL FOLDER TEXTS` embeds so many texts once. Each job asks for 64
texts a request, with 8 requests in flight, and writes into FOLDER. Packages are imported by the job that
needs them.
"""

# Without postponed annotations: PySpark reads the types of a pandas UDF from them.
import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.clients.contenders import MODEL, REQUESTS_IN_FLIGHT, TEXTS_PER_REQUEST, batches, texts


def _frame(rows: int) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark.createDataFrame(list(enumerate(texts(rows))), "id long, text string").coalesce(1)


def pillarbox(url: str, folder: Path, rows: int) -> None:
    """`embed_text` with a ledger."""
    from pillarbox import Ledger
    from pillarbox.clients import Embeddings, Http
    from pillarbox.spark import embed_text

    client = Embeddings(f"{url}/v1", MODEL, max_texts=TEXTS_PER_REQUEST, http=Http(proxy="direct"))
    ledger = Ledger(str(folder / "ledger"), uid="embed", run="one", key=["id"])
    vectors = embed_text(
        _frame(rows),
        "text",
        into="vector",
        client=client,
        keep=["id"],
        capacity=REQUESTS_IN_FLIGHT,
        ledger=ledger,
    )
    vectors.write.mode("overwrite").parquet(str(folder / "vectors"))


def gather_udf(url: str, folder: Path, rows: int) -> None:
    """A pandas UDF that gathers the answers of AsyncOpenAI, as such jobs are written by hand."""
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    frame = _frame(rows)

    async def embed_all(column: list[str]) -> list[list[float]]:
        from openai import AsyncOpenAI

        slots = asyncio.Semaphore(REQUESTS_IN_FLIGHT)
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:

            async def ask(batch: list[str]) -> list[list[float]]:
                async with slots:
                    answer = await client.embeddings.create(input=batch, model=MODEL)
                return [item.embedding for item in answer.data]

            answers = await asyncio.gather(*[ask(batch) for batch in batches(column)])
        return [vector for answer in answers for vector in answer]

    @pandas_udf("array<float>")  # type: ignore[call-overload,untyped-decorator]
    def embed(column: pd.Series) -> pd.Series:
        return pd.Series(asyncio.run(embed_all(list(column))))

    vectors = frame.withColumn("vector", embed("text"))
    vectors.write.mode("overwrite").parquet(str(folder / "vectors"))


def daft_embed_text(url: str, folder: Path, rows: int) -> None:
    """Daft's `embed_text`."""
    import daft
    from daft.ai.openai.provider import OpenAIProvider
    from daft.functions import embed_text

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    vectors = embed_text(daft.col("text"), provider=provider, model=MODEL, batch_size=TEXTS_PER_REQUEST)
    frame = daft.from_pydict({"text": texts(rows)}).with_column("vector", vectors)
    frame.write_parquet(str(folder / "vectors"), write_mode="overwrite")


JOBS: dict[str, Callable[[str, Path, int], None]] = {
    "embed_text with a ledger": pillarbox,
    "gather in a pandas UDF": gather_udf,
    "Daft embed_text": daft_embed_text,
}


if __name__ == "__main__":
    JOBS[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
