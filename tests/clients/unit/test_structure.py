"""The search for the form of structured output, call by call, and schemas without bounds."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")

from pillarbox.clients.answers import Answer
from pillarbox.clients.structure import LOOK_AFTER, FormSearch, Walk, forms_of
from pillarbox.clients.transport import HttpStatusError

KINDS = ("json_schema", "json_object", "prompt")
REFUSED = HttpStatusError("no", 400, {}, b"{}")


def begun(search: FormSearch) -> Walk:
    return Walk(search, *search.first())


def test_looks_become_rarer_while_they_find_nothing() -> None:
    async def job() -> list[int]:
        search = FormSearch(KINDS)
        search.fitted(1)
        looks = []
        for row in range(3 * LOOK_AFTER + 2):
            walk = begun(search)
            if walk.form == 0:
                looks.append(row)
                assert await walk.refused(REFUSED) is None
            assert walk.form == 1
            walk.fitted()
            walk.end()
        return looks

    assert asyncio.run(job()) == [0, LOOK_AFTER, 3 * LOOK_AFTER]


def test_a_call_that_leads_and_is_cancelled_leaves_it_to_the_next() -> None:
    async def job() -> None:
        search = FormSearch(KINDS)
        first, second = begun(search), begun(search)
        assert await first.refused(REFUSED) is None
        waiting = asyncio.ensure_future(second.refused(REFUSED))
        await asyncio.sleep(0)
        assert not waiting.done()
        first.end()
        assert await waiting is None
        assert second.form == 1
        second.fitted()
        second.end()
        assert (search.known, search.leader) == (1, None)

    asyncio.run(job())


def test_calls_on_another_loop_do_not_wait() -> None:
    search = FormSearch(KINDS)
    began, ended = threading.Event(), threading.Event()

    async def lead() -> None:
        walk = begun(search)
        assert await walk.refused(REFUSED) is None
        began.set()
        await asyncio.to_thread(ended.wait)
        walk.end()

    async def follow() -> int:
        walk = begun(search)
        assert await walk.refused(REFUSED) is None
        walk.end()
        return walk.form

    thread = threading.Thread(target=asyncio.run, args=(lead(),))
    thread.start()
    assert began.wait(30)
    try:
        assert asyncio.run(follow()) == 1
    finally:
        ended.set()
        thread.join()


def test_a_form_that_was_forgotten_leaves_the_row_to_the_known_one() -> None:
    async def job() -> None:
        search = FormSearch(KINDS)
        late = begun(search)
        search.fitted(2)
        assert await late.refused(REFUSED) is None
        assert late.form == 2
        # It is the row, then, and this is its error.
        own = HttpStatusError("too long", 400, {}, b"{}")
        assert await late.refused(own) is own

    asyncio.run(job())


# -- plain schemas -------------------------------------------------------------------------------------------


def plain_of(fields: dict[str, Any], **more: Any) -> Any:
    return Answer({"type": "object", "properties": fields, **more}).plain_schema


def test_a_plain_schema_has_no_bounds_and_keeps_all_else() -> None:
    fields = {
        "n": {"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 3, "description": "how many"},
        "day": {"type": ["string", "null"], "format": "date", "default": None},
        "tags": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"type": "string", "maxLength": 5, "enum": ["a", "b"]},
        },
        "kind": {"const": "x"},
        "one": {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
    }
    plain = plain_of(fields, required=["n"], additionalProperties=False, examples=[{}])
    assert plain == {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "description": "how many"},
            "day": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            "kind": {"enum": ["x"]},
            "one": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["n"],
        "additionalProperties": False,
    }


def test_fields_whose_names_are_words_of_schemas_stay() -> None:
    names = ("minimum", "default", "format", "enum", "not", "properties")
    fields = {name: {"type": "integer", "minimum": 1} for name in names}
    assert plain_of(fields)["properties"] == {name: {"type": "integer"} for name in names}


def test_values_of_an_enum_are_not_taken_for_schemas() -> None:
    fields = {"a": {"enum": [{"minimum": 1}, "default"]}}
    assert plain_of(fields)["properties"] == fields


def test_a_schema_without_bounds_has_one_form_by_schema() -> None:
    kinds = {
        bounds: [
            form.kind
            for form in forms_of(
                Answer({"type": "object", "properties": {"a": {"type": "integer", **bound}}}), "auto"
            )
        ]
        for bounds, bound in ((False, {}), (True, {"minimum": 0}))
    }
    weaker = ["json_object", "json_object", "prompt"]
    assert kinds == {False: ["json_schema", *weaker], True: ["json_schema", "json_schema", *weaker]}
