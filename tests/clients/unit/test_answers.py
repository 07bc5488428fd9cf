"""Answers of a Pydantic model as plain values."""

from __future__ import annotations

import pytest

from pillarbox.clients.answers import Answer

pydantic = pytest.importorskip("pydantic", reason="the package pydantic is not installed")


def test_fields_with_an_alias_have_their_own_names_as_columns_whatever_the_model_says() -> None:
    class Aliased(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        model_config = pydantic.ConfigDict(serialize_by_alias=True)
        product_name: str = pydantic.Field(alias="productName")

    answer = Answer(Aliased)
    value = answer.parse('{"productName": "x"}')
    assert answer.plain(value) == {"product_name": "x"}
    assert list(answer.written["properties"]) == ["product_name"]
