"""Dead letters without Spark: failed items are put aside, and nothing else."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Errors, async_map


async def picky(row: Any) -> Any:
    if row in (2, (2, "b")) or isinstance(row, dict | bytes | list):
        raise ValueError("not two")
    return row


def letters(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.contract
def test_failed_items_are_put_aside_with_their_error_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "failed.jsonl"
    assert list(async_map(range(4), picky, errors=Errors(dead_letter=path))) == [0, 1, 3]
    (letter,) = letters(path)
    assert letter["row"] == 2
    assert (letter["_error"]["type"], letter["_error"]["message"], letter["_error"]["attempts"]) == (
        "ValueError",
        "not two",
        1,
    )
    assert letter["_failed_at"].endswith("+00:00")


@pytest.mark.contract
def test_a_letter_is_in_the_file_before_a_later_result_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "failed.jsonl"
    with async_map(range(4), picky, errors=Errors(dead_letter=path), capacity=1) as results:
        assert [next(results), next(results), next(results)] == [0, 1, 3]
        assert [letter["row"] for letter in letters(path)] == [2]


def test_later_runs_add_to_the_file_and_one_without_failures_makes_none(tmp_path: Path) -> None:
    path = tmp_path / "failed.jsonl"
    assert list(async_map([1], picky, errors=Errors(dead_letter=path))) == [1]
    assert not path.exists()
    for _ in range(2):
        assert list(async_map([2, (2, "b")], picky, errors=Errors("null", dead_letter=str(path)))) == [
            None,
            None,
        ]
    assert [letter["row"] for letter in letters(path)] == [2, [2, "b"]] * 2


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "failed.jsonl"
    path.touch()
    path.chmod(0o640)
    assert list(async_map([2], picky, errors=Errors(dead_letter=path))) == []
    assert letters(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_json_has_no_form_for_stands_as_its_repr(tmp_path: Path) -> None:
    path = tmp_path / "failed.jsonl"
    items = [b"x" * 5_000, {(1, 2): 3}, [1.5, float("nan")]]
    assert list(async_map(items, picky, errors=Errors(dead_letter=path))) == []
    assert [letter["row"] for letter in letters(path)] == [repr(item) for item in items]
    assert "NaN" not in path.read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_folder_that_may_not_be_written_is_refused_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="this user may not write it"):
        async_map([], picky, errors=Errors(dead_letter=tmp_path / "failed.jsonl"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"errors": Errors(dead_letter=5)}, TypeError, "dead_letter=5: must be the path of a file"),
        (
            {"errors": Errors(dead_letter="no/such/folder/x.jsonl")},
            ValueError,
            "there is no folder 'no/such/folder'",
        ),
        ({"errors": Errors(dead_letter=".")}, ValueError, "dead_letter='.': is a folder"),
    ],
)
def test_a_bad_place_for_letters_is_refused_at_once(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        async_map([], picky, **given)
    with pytest.raises(ValueError, match="errors='fail', dead_letter"):
        Errors("fail", dead_letter="x.jsonl")
