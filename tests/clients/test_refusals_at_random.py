"""Whatever a service refuses, for its size, its form or a text, each good text gets its vector."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Batch, Errors, Retry
from tests.clients.unit.raw_embeddings import Reply, answer, embedded, serving, vector_of
from tests.search import examples

QUICK = Retry(3, initial=0.001, maximum=0.002)
MOST_BYTES = 100_000


@pytest.mark.contract
@settings(max_examples=examples(100), deadline=None)
@given(
    rows=st.integers(1, 150),
    limit=st.integers(1, 70),
    most_bytes=st.sampled_from([MOST_BYTES, 100 * MOST_BYTES]),
    size_status=st.sampled_from([400, 413, 422]),
    base64_status=st.sampled_from([None, 400, 403, 500, 501]),
    bad_status=st.sampled_from([400, 413, 422]),
    bad=st.sets(st.integers(0, 149), max_size=4),
    empty=st.sets(st.integers(0, 149), max_size=4),
    long=st.sets(st.integers(0, 149), max_size=10),
    capacity=st.integers(1, 6),
    batch=st.sampled_from([None, 7, 200]),
)
def test_each_good_text_gets_its_vector_and_each_bad_one_its_error(
    rows: int,
    limit: int,
    most_bytes: int,
    size_status: int,
    base64_status: int | None,
    bad_status: int,
    bad: set[int],
    empty: set[int],
    long: set[int],
    capacity: int,
    batch: int | None,
) -> None:
    def text_of(row: int) -> str:
        if row in empty:
            return " "
        name = "bad" if row in bad else "text"
        return f"{name} {row}" + " x" * (10_000 if row in long else 0)

    def handle(request: dict[str, Any]) -> Reply:
        texts = request["input"]
        if request.get("encoding_format") == "base64" and base64_status is not None:
            return Reply(base64_status, {"error": {"message": "no base64"}})
        if len(texts) > limit:
            return Reply(size_status, {"error": {"message": f"{len(texts)} texts are too many"}})
        if sum(map(len, texts)) > most_bytes:
            return Reply(413, "")
        if any(text.startswith("bad") for text in texts):
            return Reply(bad_status, {"error": {"message": "a bad text"}})
        return answer(request)

    texts = [text_of(row) for row in range(rows)]
    options: dict[str, Any] = {} if batch is None else {"batch": Batch(batch)}
    with serving(handle) as service:
        client = service.client()
        found = embedded(
            client, texts, retry=QUICK, capacity=capacity, errors=Errors("column", floor=None), **options
        )
    for text, each in zip(texts, found, strict=True):
        if text == " ":
            assert each.error.type == "EmptyText"
        elif text.startswith("bad"):
            assert each.error.status == bad_status
        else:
            assert each.error is None, each.error
            assert [*each.result] == vector_of(text)
