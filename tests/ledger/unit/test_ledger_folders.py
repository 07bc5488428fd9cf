"""A ledger whose files were changed, or are of another version, and what its folders hold."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.errors import LedgerFormatError, LedgerWarning
from pillarbox.ledger.format import Origin
from pillarbox.ledger.local_folder import LocalFolder
from tests.ledger.unit.segments import key

SCOPE = Scope("run", "uid")


@pytest.mark.contract
def test_a_ledger_of_a_later_version_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "v3").mkdir()
    with pytest.raises(
        LedgerFormatError,
        match=r"another version of the format \(v3\), .* knows version 2: use another location",
    ):
        Ledger(str(tmp_path)).reader(SCOPE)


@pytest.mark.parametrize(
    "scope",
    [
        Scope("run", "uid"),
        Scope("..", "."),
        Scope("a/b=c%2F", "é \n", batch=0),
        Scope.of("query", "uid", {"model": "small"}, batch=2**40),
    ],
)
def test_scopes_are_found_again_whatever_they_are_called(tmp_path: Path, scope: Scope) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    with ledger.writer(scope) as writer:
        writer.append(key(1), 1)
    assert list(ledger.scopes()) == [scope]
    assert key(1) in ledger.reader(scope)
    assert os.listdir(tmp_path) == ["ledger"]


@pytest.mark.contract
def test_results_of_another_configuration_run_batch_or_operator_are_not_found(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    scope = Scope.of("run", "uid", {"model": "small"}, batch=1)
    with ledger.writer(scope) as writer:
        writer.append(key(1), 1)
    for other in (
        Scope.of("run", "uid", {"model": "large"}, batch=1),
        Scope.of("run", "uid", {"model": "small"}, batch=2),
        Scope.of("run", "uid", {"model": "small"}),
        Scope.of("run-2", "uid", {"model": "small"}, batch=1),
        Scope.of("run", "uid-2", {"model": "small"}, batch=1),
    ):
        assert key(1) not in ledger.reader(other)
    assert key(1) in ledger.reader(scope)


@pytest.mark.contract
@pytest.mark.parametrize("names", ["0123", "3210", "2031"], ids=["rising", "falling", "mixed"])
def test_another_input_of_a_key_is_compared_with_the_latest_that_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    ledger = Ledger(str(tmp_path))
    for number, name in enumerate(names):
        monkeypatch.setattr("pillarbox.ledger.writer.secrets.token_hex", lambda _, name=name: name * 16)
        with ledger.writer(SCOPE, execution=b"execution %d" % number) as writer:
            writer.append(key(1), number, input=b"input %d" % number)
    other = ledger.reader(SCOPE).search(key(1), b"input 4", b"execution 4")
    assert isinstance(other, Origin) and other.input == b"input 3"


def test_two_that_mark_a_place_at_once_are_both_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(str(tmp_path / "calls"))
    with monkeypatch.context() as patched:
        # Each looks before the other has written.
        patched.setattr(LocalFolder, "names", lambda folder: [])
        one, other = ledger.identity(), ledger.identity()
    assert one != other
    ledger.check_identity(one)
    ledger.check_identity(other)
    assert ledger.identity() == min(one, other)


def damaged(ledger: Ledger, offset: int) -> None:
    """Flip a bit of the only segment."""
    folder = ledger.folder(SCOPE)
    path = Path(folder.path, folder.segments()[0][0])
    content = bytearray(path.read_bytes())
    content[offset] ^= 8
    path.write_bytes(content)


@pytest.mark.contract
def test_damage_is_said_once_and_costs_its_records_only(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), commit_rows=1)
    with ledger.writer(SCOPE) as writer:
        for number in range(3):
            writer.append(key(number), number)
            writer.flush()
    damaged(ledger, -4)
    reader = ledger.reader(SCOPE)
    with pytest.warns(LedgerWarning, match=r"the checksum of the records is wrong. Its calls are made again"):
        assert reader.get(key(2)) is None
    assert reader.get(key(2)) is None
    assert key(0) in reader and key(1) in reader
    assert [damage.reason for damage in reader.damage] == ["the checksum of the records is wrong"]
    # The call is made again, and its result is found from then on, behind the damage or before it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        with ledger.writer(SCOPE) as writer:
            writer.append(key(2), "again")
        record = ledger.reader(SCOPE).get(key(2))
    assert record is not None and record.value == "again"
