"""Texts of the input that are not UTF-8, as a task decodes them. Without a session."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pillarbox.spark.records import arguments_of, rows_of


@pytest.mark.contract(
    "Of rows that are decoded together those alone raise whose text is not UTF-8.",
    convicts=["unreadable_text_fails_slice"],
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_those_rows_alone_raise_whose_text_cannot_be_read(depth: int) -> None:
    texts = pa.array([b"a", b"\xff", None, b"b"]).view(pa.string())
    for _ in range(depth):
        texts = pa.ListArray.from_arrays([0, 1, 2, 3, 4], texts)
    batch = pa.record_batch({"n": [1, 2, 3, 4], "t": texts})
    records, arguments = rows_of(batch).take(4), arguments_of(batch).take(4)
    assert [record.n for record in records] == [1, 2, 3, 4]
    for place, (record, values) in enumerate(zip(records, arguments, strict=True)):
        if place == 1:
            with pytest.raises(ValueError, match="not UTF-8: byte 0xff at 0 of 1"):
                record.t  # noqa: B018
            with pytest.raises(ValueError, match="not UTF-8"):
                list(values)
            assert "xff" in repr(record)
        else:
            assert record.t == list(values)[1] == texts[place].as_py()
