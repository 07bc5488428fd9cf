"""The owner of an answer: a row gets the answer to its own input, by its own function, and no other row's."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox import async_map
from pillarbox.ledger import Cache, Ledger, LedgerError, Scope

pytestmark = pytest.mark.usefixtures("each_loop")

NAMES: dict[str, Any] = {"uid": "uid", "run": "run"}


class Service:
    """Answers with the row's text and the number of its call; counts calls by text."""

    def __init__(self) -> None:
        self.calls: Counter[Any] = Counter()

    async def call(self, row: dict[str, Any]) -> list[Any]:
        await asyncio.sleep(0)
        self.calls[row["text"]] += 1
        return [row["text"], self.calls[row["text"]]]


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


def run(service: Service, rows: list[dict[str, Any]], ledger: Ledger, **given: Any) -> list[Any]:
    names = {"key": ["id"], **NAMES}
    names |= {name: given.pop(name) for name in ("key", "uid", "run") if name in given}
    return list(async_map(rows, service.call, ledger=dataclasses.replace(ledger, **names), **given))


def rows_of(numbers: range, text: str = "text", **more: Any) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"{text} {number}", **more} for number in numbers]


@pytest.mark.contract
@pytest.mark.parametrize("key", [["id"], ["id", "text"]])
@pytest.mark.parametrize("capacity", [1, 100])
def test_a_row_whose_key_is_null_gets_its_own_answer(location: str, key: list[str], capacity: int) -> None:
    service = Service()
    rows = rows_of(range(40))
    for row in rows[::4]:
        row["id"] = None
    first = run(service, rows, Ledger(location), key=key, capacity=capacity)
    assert first == [[row["text"], 1] for row in rows]
    assert run(service, [*reversed(rows)], Ledger(location), key=key) == [*reversed(first)]
    # Equal rows without a key are counted, as rows without key columns are.
    twice = run(service, [rows[0], rows[0]], Ledger(location), key=key)
    assert twice == [[rows[0]["text"], 1], [rows[0]["text"], 2]]


@pytest.mark.contract(convicts=["other_input_joins"])
@pytest.mark.parametrize("capacity", [1, 100])
def test_a_key_that_comes_twice_with_different_inputs_ends_the_job(location: str, capacity: int) -> None:
    service = Service()
    rows = [*rows_of(range(20)), {"id": 7, "text": "another"}]
    with pytest.raises(LedgerError, match="have one key, and differ in text; .*name one row"):
        run(service, rows, Ledger(location), capacity=capacity, errors="null")
    assert "another" not in service.calls


@pytest.mark.contract
@pytest.mark.parametrize("capacity", [1, 100])
def test_a_row_whose_columns_come_in_another_order_is_the_same_row(location: str, capacity: int) -> None:
    service = Service()
    row = rows_of([7], lang="en")[0]
    other = dict(reversed(row.items()))
    assert list(other) != list(row)
    for rows in ([row, other], [other, row]):
        assert run(service, rows, Ledger(location), capacity=capacity) == [[row["text"], 1]] * 2


@pytest.mark.contract
def test_rows_of_one_key_and_one_input_in_flight_share_one_call(location: str) -> None:
    service = Service()
    rows = rows_of(range(5)) * 3
    job = async_map(rows, service.call, ledger=Ledger(location, key=["id"], **NAMES))
    assert list(job) == [[row["text"], 1] for row in rows]
    assert set(service.calls.values()) == {1}
    statistics = job.statistics()
    assert statistics is not None
    assert (statistics.calls, statistics.shared + statistics.found, statistics.results) == (5, 10, 15)
    assert len(list(Ledger(location).reader(Scope.of("run", "uid", {"key": ["id"]})).records())) == 5


def test_rows_that_share_a_call_share_its_failure_and_count(location: str) -> None:
    async def call(row: dict[str, Any]) -> int:
        await asyncio.sleep(0)
        raise ValueError(row["id"])

    rows = rows_of(range(2)) * 3
    job = async_map(rows, call, ledger=Ledger(location, key=["id"], **NAMES), errors="column")
    assert [outcome.error.type for outcome in job] == ["ValueError"] * 6  # type: ignore[attr-defined]
    statistics = job.statistics()
    assert statistics is not None and statistics.errors == 6


def another(number: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": "another"}]


@pytest.mark.contract(
    "A key that comes twice with different inputs is an error where an earlier run has answered one, too."
)
@pytest.mark.parametrize("of_found", [0, 2000])
def test_a_key_that_comes_twice_is_an_error_where_an_earlier_run_has_answered_one_input(
    location: str, of_found: int
) -> None:
    service = Service()
    rows = rows_of(range(10 + of_found))
    first = run(service, rows, Ledger(location))
    with pytest.raises(LedgerError, match="differ in text"):
        run(service, rows + another(3), Ledger(location))
    # Now an earlier run has answered both.
    with pytest.raises(LedgerError, match="differ in text"):
        run(service, another(3) + rows, Ledger(location))
    assert run(service, rows, Ledger(location)) == first
    assert run(service, another(3), Ledger(location)) == [["another", 1]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The messages of this package, each once."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger("pillarbox").addHandler(handler)
    yield messages
    logging.getLogger("pillarbox").removeHandler(handler)


@pytest.mark.contract
def test_a_row_whose_input_has_changed_is_called_again_and_one_message_gives_the_count(
    location: str, said: list[str]
) -> None:
    service = Service()
    old, new = rows_of(range(20), "old", lang="en"), rows_of(range(20), "new", lang="en")
    first = run(service, old, Ledger(location))
    assert not said
    assert run(service, new, Ledger(location)) == [[row["text"], 1] for row in new]
    assert len(said) == 1
    assert "uid='uid': 20 rows were called again" in said[0] and "(it differs by text in 20)" in said[0]
    # Both answers stay, each for its input.
    assert run(service, new, Ledger(location)) == [[row["text"], 1] for row in new]
    assert run(service, old, Ledger(location)) == first
    assert set(service.calls.values()) == {1}
    assert len(said) == 1


@pytest.mark.contract
def test_an_answer_of_another_version_is_called_for_again(location: str, said: list[str]) -> None:
    service = Service()
    rows = rows_of(range(20))
    for version, calls in ((None, 1), (1, 2), ("1", 3), (1, 2), (None, 1)):
        expected = [[row["text"], calls] for row in rows]
        assert run(service, rows, Ledger(location, version=version)) == expected
    assert set(service.calls.values()) == {3}
    assert len(said) == 2
    assert "20 rows were called again" in said[0] and "20 of another version than 1" in said[0]


@pytest.mark.contract
def test_only_the_columns_that_are_named_count_also_of_what_was_kept_before(
    location: str, said: list[str]
) -> None:
    service = Service()

    def rows(read_at: int, lang: str = "en") -> list[dict[str, Any]]:
        return rows_of(range(20), read_at=read_at, lang=lang)

    run(service, rows(1), Ledger(location))
    run(service, rows(2), Ledger(location))
    assert set(service.calls.values()) == {2}
    # A volatile column is told at once, and what to do about it.
    assert "(it differs by read_at in 20)" in said[0] and "name those that count: inputs=[...]" in said[0]
    named = Ledger(location, inputs=["text"])
    assert {row[1] for row in run(service, rows(3), named)} <= {1, 2}
    assert {row[1] for row in run(service, rows(4, "de"), named)} <= {1, 2}
    assert set(service.calls.values()) == {2}
    assert [row[1] for row in run(service, rows(4, "de"), Ledger(location, inputs=["text", "lang"]))] == [
        3
    ] * 20
    assert "(it differs by lang in 20)" in said[-1]


def test_a_row_without_key_columns_is_known_by_the_columns_that_count(location: str) -> None:
    service = Service()
    ledger = Ledger(location, inputs=["text"])
    first = run(service, rows_of(range(5), read_at=1), ledger, key=None)
    assert run(service, rows_of(range(5), read_at=2), ledger, key=None) == first
    # The same values under another name are other rows.
    renamed = [{"text": 0, "title": row["text"]} for row in rows_of(range(5))]
    service.calls.clear()
    run(service, renamed, Ledger(location, inputs=["title"]), key=None)
    assert service.calls.total() == 5


@pytest.mark.contract
def test_a_segment_of_another_operator_is_not_believed(location: str) -> None:
    service = Service()
    rows = rows_of(range(20))
    run(service, rows, Ledger(location), uid="other")
    # Copied under the name of this one.
    (folder,) = Path(location).glob("v2/run=run/batch=none/uid=other")
    shutil.copytree(folder, folder.with_name("uid=uid"))
    with pytest.warns(UserWarning, match="belongs to run='run', batch='None', uid='other'.*not believed"):
        assert run(service, rows, Ledger(location)) == [[row["text"], 2] for row in rows]
    assert run(service, rows, Ledger(location), uid="other") == [[row["text"], 1] for row in rows]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"version": 1.5}, TypeError, "version=1.5: must be an int, a str or None"),
        ({"version": True}, TypeError, "version=True: must be"),
        ({"version": ""}, ValueError, "version='': must not be empty"),
        ({"inputs": "text"}, TypeError, "inputs='text': must be a list of names"),
        ({"inputs": []}, ValueError, r"inputs=\[\]: must name a column"),
        ({"inputs": [1.5]}, TypeError, "1.5 is neither a name nor a position"),
    ],
)
def test_what_a_ledger_is_told_of_versions_and_inputs_is_checked(
    location: str, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Ledger(location, **given)


def test_a_column_without_a_fingerprint_is_named_and_what_to_do(location: str) -> None:
    service = Service()
    rows = [{"id": 1, "text": "x", "socket": object()}]
    with pytest.raises(LedgerError, match=r"column 'socket': .* Ledger\(\.\.\., inputs=\[\.\.\.\]\)"):
        run(service, rows, Ledger(location))
    assert run(service, rows, Ledger(location, inputs=["text"])) == [["x", 1]]


@pytest.mark.contract(
    "What a row of Pydantic has beyond the fields of its class counts in a ledger and a cache.",
    convicts=["extra_fields_not_fingerprinted"],
)
@pytest.mark.parametrize(
    "given",
    [{"key": ["name"], "run": "run"}, {"cache": Cache()}],
    ids=["ledger", "cache"],
)
def test_what_a_row_has_beyond_the_fields_of_its_class_counts(location: str, given: dict[str, Any]) -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Open(pydantic.BaseModel, frozen=True, extra="allow"):  # type: ignore[name-defined, misc]
        name: str

    calls = []

    async def call(row: Any) -> Any:
        calls.append(row.more)
        return row.more

    ledger = Ledger(location, uid="uid", **given)
    for more in (1, 2, 1.0):
        rows = [Open(name="a", more=more)]
        assert [*async_map(rows, call, ledger=ledger)] == [more]
    assert [*map(repr, calls)] == ["1", "2", "1.0"]
