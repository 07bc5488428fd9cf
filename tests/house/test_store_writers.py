"""The writers of docs/stores.md, without their servers: what each does with batches that are empty."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from tests.house.pages import blocks

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "stores.md").read_text()
SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string(), "vector": pa.list_(pa.float32())})
WRITERS = ("to_postgres", "to_opensearch", "to_qdrant")


def functions() -> dict[str, ast.FunctionDef]:
    """The functions of the page, by their names."""
    found = [node for _, code in blocks(PAGE) for node in ast.walk(ast.parse(code))]
    return {node.name: node for node in found if isinstance(node, ast.FunctionDef)}


def writer(name: str, written: list[int]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function of the page, with stand-ins for the stores. written: gets the keys of rows that are sent."""

    def bulk(client: Any, documents: list[Any], **_: Any) -> tuple[int, list[Any]]:
        written.extend(each["_id"] for each in documents)
        return len(documents), []

    def upsert(collection: str, points: Any, *, wait: bool) -> None:
        assert points.ids, "an update of no points is refused"
        assert {len(vector) for vector in points.vectors} == {8}
        written.extend(points.ids)

    postgres = MagicMock()
    copy = postgres.connect().__enter__().cursor().__enter__().copy().__enter__()
    copy.write_row.side_effect = lambda row: written.append(row[0])
    postgres.connect().__enter__().cursor().__enter__().rowcount = 0
    scope: dict[str, Any] = {
        "pa": pa,
        "url": "",
        "search_url": "",
        "where": {},
        "psycopg": postgres,
        "register_vector": MagicMock(),
        "OpenSearch": MagicMock(),
        "helpers": SimpleNamespace(bulk=bulk),
        "models": SimpleNamespace(Batch=SimpleNamespace),
        "QdrantClient": MagicMock(),
    }
    scope["QdrantClient"]().upsert.side_effect = upsert
    exec(compile(ast.Module([functions()[name]], []), "docs/stores.md", "exec"), scope)
    made: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = scope[name]
    return made


@pytest.mark.contract("The page's writers to stores of vectors take batches without rows.")
@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_takes_empty_batches(name: str) -> None:
    assert {each for each in functions() if each.startswith("to_")} == {*WRITERS}
    rows = [{"id": number, "text": "x", "vector": [float(number)] * 8} for number in range(3)]
    empty, full = (pa.RecordBatch.from_pylist(each, SCHEMA) for each in ([], rows))
    for batches, keys in (([empty, full, empty], [0, 1, 2]), ([empty], []), ([], [])):
        written: list[int] = []
        list(writer(name, written)(iter(batches)))
        assert written == keys
