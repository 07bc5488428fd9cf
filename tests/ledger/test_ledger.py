"""A ledger is checked when it is made, pickles, shows no secret, and finds its scopes again."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from pillarbox.ledger import Ledger, LedgerError, Scope


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"location": ""}, ValueError, "location=''"),
        ({"location": 5}, TypeError, "location=5: must be a path or a URL, not int"),
        ({"location": "ftp://host/x"}, ValueError, "the scheme ftp:// is not one of file://, s3://"),
        ({"location": "dbfs:/mnt/x"}, ValueError, "'dbfs:/mnt/x': the scheme dbfs:/ is not one of file://"),
        ({"location": "S3:/U:P@b"}, ValueError, r"'S3:/\*\*\*@b': the scheme s3:/ is not one of file://"),
        ({"loss_window": 0}, ValueError, "loss_window=0: must be a finite number of seconds above 0"),
        ({"loss_window": True}, TypeError, "loss_window=True: must be a number of seconds"),
        ({"commit_rows": 0}, ValueError, "commit_rows=0: must be from 1 to"),
        ({"commit_bytes": 1.5}, TypeError, "commit_bytes=1.5: must be an int, not float"),
        ({"retry_errors": 1}, TypeError, "retry_errors=1: must be True or False"),
        ({"filesystem": "s3"}, TypeError, "must be a pyarrow.fs.FileSystem or None, not str"),
    ],
)
def test_bad_arguments_are_named_when_they_are_given(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        Ledger(**{"location": str(tmp_path), **arguments})


def test_a_file_is_no_place_for_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file, and must be a folder"):
        Ledger(str(tmp_path / "file"))


@pytest.mark.contract
def test_a_ledger_pickles_and_a_relative_path_is_that_of_whoever_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = Ledger("calls", loss_window=1)
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(ledger))
    assert again == ledger == Ledger(tmp_path / "calls", loss_window=1.0)  # type: ignore[arg-type]
    assert again.local_path == str(tmp_path / "calls")
    for begin in ("file://", "file:"):
        assert Ledger(f"{begin}{tmp_path}/with%20space").local_path == f"{tmp_path}/with space"


@pytest.mark.contract(
    "A path that begins with ~ is below the home folder of the process that makes the Ledger."
)
def test_a_path_in_the_home_folder_is_that_of_whoever_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ledger = Ledger("~/calls")
    ledger.check()
    # A worker may have another one.
    monkeypatch.setenv("HOME", "/nowhere")
    assert pickle.loads(pickle.dumps(ledger)).local_path == str(tmp_path / "home" / "calls")
    assert os.listdir(tmp_path) == ["home"]
    assert Ledger("./~/calls").local_path == str(tmp_path / "~" / "calls")
    with pytest.raises(
        ValueError, match=r"'~nobody-here/calls': there is no home .*written './~nobody-here'"
    ):
        Ledger("~nobody-here/calls")
    with pytest.raises(ValueError, match=r"a URL has no '~': write '~/calls'"):
        Ledger("file://~/calls")


@pytest.mark.contract
def test_what_a_url_says_beside_its_place_is_not_shown() -> None:
    ledger = Ledger("s3://KEY:SECRET@bucket/path?session_token=TOKEN")
    assert "Ledger('s3://***@bucket/path'" in repr(ledger)
    for secret in ("KEY", "SECRET", "TOKEN"):
        assert secret not in repr(ledger)
    with pytest.raises(ValueError, match="scheme") as caught:
        Ledger("ftp://KEY:SECRET@host/x?TOKEN")
    assert not any(secret in str(caught.value) for secret in ("KEY", "SECRET", "TOKEN"))


@pytest.mark.contract
@pytest.mark.parametrize(
    "location",
    [
        "s3://KEY:SECRET@bucket/path?session_token=TOKEN",
        "s3://KEY:SEC/RET@bucket/path",
        "s3://KEY:1/SECRET@bucket/path?region=x",
        # Arrow asks a network for the region of such a bucket, again and again.
        pytest.param("s3://KEY:1/SECRET@bucket/path", marks=pytest.mark.slow),
        "s3://KEY:SE?CRET@bucket",
        "s3://KEY:SE@CRET@bucket",
        "s3://bucket/path?secret=SE@CRET",
    ],
)
def test_no_error_of_a_ledger_shows_a_secret_of_its_address(location: str) -> None:
    ledger = Ledger(location)
    said = repr(ledger)
    for wrong in (
        lambda: ledger.check(),
        lambda: ledger.check_identity("x"),
        lambda: [*ledger.scopes()],
        lambda: Ledger(location.replace("s3", "ftp")),
        lambda: Ledger(location.encode()),  # type: ignore[arg-type]
    ):
        try:
            wrong()
        except (LedgerError, OSError, TypeError, ValueError) as error:
            said += "".join(traceback.format_exception_only(type(error), error))
            said += f"{error.__cause__}{None if error.__suppress_context__ else error.__context__}"
    assert not [part for part in ("KEY", "SEC", "CRET", "TOKEN") if part in said.replace("ftp", "")]


def test_check_says_early_that_nothing_can_be_written(tmp_path: Path) -> None:
    Ledger(str(tmp_path / "new" / "folder")).check()
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot be made"):
        Ledger(str(tmp_path / "file" / "below")).check()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("", "u"), "run='': must not be empty"),
        (("r", ""), "uid='': must not be empty"),
        (("\udcff", "u"), "must be text that has a form in UTF-8"),
        (("r" * 201, "u"), "may have 200 characters"),
        (("r", "u", "c", -1), "batch=-1: must be from 0"),
    ],
)
def test_a_scope_without_sense_is_refused(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Scope(*arguments)


@pytest.mark.contract
@pytest.mark.parametrize("kind", ["local", "objects"])
def test_a_place_is_known_by_its_mark_and_another_under_the_same_path_is_refused(
    tmp_path: Path, kind: str
) -> None:
    more: dict[str, Any] = {}
    location = str(tmp_path / "calls")
    if kind == "objects":
        fs = pytest.importorskip("pyarrow.fs")
        more = {"filesystem": fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())}
        location = "calls"
    ledger = Ledger(location, **more)
    identity = ledger.identity()
    assert Ledger(location, **more, loss_window=1.0).identity() == identity
    ledger.check_identity(identity)
    # Another disk is mounted there, as it is on a machine that does not share the folder.
    (tmp_path / "calls").rename(tmp_path / "elsewhere")
    for is_empty in (True, False):
        with pytest.raises(LedgerError, match=f"not the place that the driver saw, whose mark {identity} is"):
            ledger.check_identity(identity)
        if is_empty:
            assert ledger.identity() != identity


def test_importing_the_ledger_imports_no_arrow() -> None:
    script = "import pillarbox.ledger, sys; print('pyarrow' in sys.modules, 'pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
