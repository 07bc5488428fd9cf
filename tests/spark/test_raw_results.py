"""Functions that give raw results, in Spark: the ledger keeps what is raw, columns have what is parsed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from pillarbox import Batch, Ledger
from pillarbox.spark import async_map, async_udf

CALLS = "calls"


class Asked:
    """Answers with a JSON text and notes its calls in a folder; fields are those of a parsed answer."""

    def __init__(self, folder: Path, *fields: str) -> None:
        self.folder = str(folder)
        self.fields = fields

    def note(self, number: int) -> str:
        with (Path(self.folder) / CALLS).open("a") as file:
            file.write(f"{number}\n")
        return json.dumps({"square": number * number, "name": f"n{number}"})

    async def __call__(self, row: Any) -> Any:
        if isinstance(row, list):
            return [self.note(each.id) for each in row]
        return self.note(row if isinstance(row, int) else row.id)

    def parse(self, text: str) -> Any:
        answer = json.loads(text)
        return {field: answer[field] for field in self.fields}

    @property
    def calls(self) -> int:
        noted = Path(self.folder) / CALLS
        return len(noted.read_text().split()) if noted.exists() else 0


class AskedForOne(Asked):
    """As `Asked`, parsed into the first field alone."""

    def parse(self, text: str) -> Any:
        return json.loads(text)[self.fields[0]]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"), uid="ask", run="run", key=["id"])


@pytest.mark.contract
@pytest.mark.parametrize("batch", [None, Batch(4)])
def test_another_schema_of_the_answers_is_parsed_anew_without_a_call(
    spark: SparkSession, tmp_path: Path, ledger: Ledger, batch: Batch | None
) -> None:
    numbers = spark.range(0, 20, 1, 2)

    def ask(schema: str, *fields: str, **more: Any) -> list[Row]:
        asked = Asked(tmp_path, *fields)
        return async_map(numbers, asked, schema=schema, keep=["id"], batch=batch, **more).collect()

    wanted = [Row(id=n, square=n * n) for n in range(20)]
    assert ask("square long", "square") == wanted
    assert Asked(tmp_path).calls == 20
    assert ask("square long", "square", ledger=ledger) == wanted
    assert Asked(tmp_path).calls == 40
    assert ask("square long", "square", ledger=ledger) == wanted
    assert ask("name string, square double", "name", "square", ledger=ledger) == [
        Row(id=n, name=f"n{n}", square=float(n * n)) for n in range(20)
    ]
    assert Asked(tmp_path).calls == 40


@pytest.mark.contract
def test_a_column_of_raw_results_has_another_type_without_a_call(
    spark: SparkSession, tmp_path: Path, ledger: Ledger
) -> None:
    numbers = spark.range(0, 10, 1, 1)

    def column(returned: str, field: str) -> list[Any]:
        asked: Callable[..., Any] = AskedForOne(tmp_path, field)
        ask = async_udf(asked, returned, ledger=dataclasses.replace(ledger, key=[0]))
        return [row[0] for row in numbers.select(ask("id")).collect()]

    assert column("long", "square") == [n * n for n in range(10)]
    assert column("double", "square") == [float(n * n) for n in range(10)]
    assert column("string", "name") == [f"n{n}" for n in range(10)]
    assert Asked(tmp_path).calls == 10
