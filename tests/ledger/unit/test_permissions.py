"""Permissions: files with rows or answers are their owner's, whatever the umask, unless `mode=` is given."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Errors, async_map
from pillarbox.aio.observe import report
from pillarbox.aio.totals import Totals
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.cli import main
from pillarbox.ledger.maintenance import expire
from pillarbox.ledger.private_files import check_mode, folder_mode, open_own
from pillarbox.ledger.upkeep import compact
from tests.ledger.kept import SCOPE, found, keep
from tests.ledger.two_users import GROUP, NOBODY, OTHER, finish, run_as, shared_place, start_as
from tests.ledger.unit.segments import key

__all__ = ["shared_place"]

LONG = 600.0


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(place: Path) -> dict[str, int]:
    """The mode of everything below a folder, and of the folder."""
    return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in [place, *place.rglob("*")]}


def check(place: Path, mode: int) -> None:
    for path, found_mode in modes(place).items():
        wanted = folder_mode(mode) if os.path.isdir(path) else mode
        assert found_mode == wanted, f"{path}: {found_mode:04o}"


def use(ledger: Ledger, scope: Scope = SCOPE) -> None:
    """Have every kind of file in a ledger."""
    ledger.check()
    ledger.identity()
    lease = ledger.lease(scope, "task")
    assert lease is not None and lease.acquire()
    keep(ledger, {1: 1}, scope)
    keep(ledger, {2: 2}, scope)
    compact(ledger, scope)
    keep(ledger, {3: 3}, scope)
    lease.release()
    assert lease.acquire()


@pytest.mark.contract
def test_a_ledger_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    place = tmp_path / "above" / "ledger"
    use(Ledger(str(place)))
    names = {path.name.partition("-")[0] for path in place.rglob("*") if path.is_file()}
    assert {".lock", ".compact", ".lease"} <= names
    check(tmp_path / "above", 0o600)


@pytest.mark.contract
@pytest.mark.parametrize("mode", [0o660, 0o640, 0o644, 0o666])
def test_mode_says_for_files_and_folders_who_shares_a_ledger_whatever_the_umask(
    tmp_path: Path, umask: int, mode: int
) -> None:
    place = tmp_path / "ledger"
    use(Ledger(str(place), mode=mode))
    check(place, mode)
    # Who comes without a mode finds it.
    use(Ledger(str(place)), Scope("another", "uid")) if mode & 0o007 == 0 else None
    check(place, mode)


@pytest.mark.contract
def test_a_ledger_that_is_there_stays_as_open_as_it_is(tmp_path: Path, umask: int) -> None:
    place = tmp_path / "ledger"
    use(Ledger(str(place)))
    for shared in (0o775, 0o755):
        for path in [place, *place.rglob("*")]:
            path.chmod(shared if path.is_dir() else shared & 0o666)
        before = modes(place)
        use(Ledger(str(place)), Scope(f"later-{shared:o}", "uid"))
        assert before.items() <= modes(place).items()
        check(place, shared & 0o666)
        # What is said is what is meant; and it narrows nothing that is there.
        keep(Ledger(str(place), mode=0o640), {4: 4}, Scope("narrow", "uid"))
        assert modes(place / "v2" / "run=narrow") != {} and before.items() <= modes(place).items()
        check(place / "v2" / "run=narrow", 0o640)
        expire(Ledger(str(place)), Scope("narrow", "uid"))


def test_new_folders_keep_the_bit_that_hands_the_group_on(tmp_path: Path) -> None:
    place = tmp_path / "ledger"
    place.mkdir()
    place.chmod(0o2770)
    use(Ledger(str(place), mode=0o660))
    assert {mode for path, mode in modes(place).items() if os.path.isdir(path)} == {0o2770}


def test_a_mode_that_is_none_is_refused(tmp_path: Path) -> None:
    for value in (0o770, 0o400, 0o060, 0, 0o1660, -1):
        with pytest.raises(ValueError, match="^mode=.*must be the mode of files"):
            Ledger(str(tmp_path), mode=value)
    for wrong in ("660", True, 6.0):
        with pytest.raises(TypeError, match="^mode=.*must be an int such as 0o660"):
            Ledger(str(tmp_path), mode=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is for a local folder"):
        Ledger("s3://bucket/ledger", mode=0o660)
    assert (check_mode(None), folder_mode(0o600), folder_mode(0o664)) == (None, 0o700, 0o775)
    assert "mode=0o660" in repr(Ledger(str(tmp_path), mode=0o660)) and "mode=" not in repr(
        Ledger(str(tmp_path))
    )


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(0o644)
    path.chmod(0o644)
    os.close(open_own(str(path), os.O_CREAT | os.O_RDWR, 0o600))
    assert modes(path)[str(path)] == 0o644


@pytest.mark.contract
def test_an_export_a_report_and_dead_letters_are_their_owners_alone_whatever_the_umask(
    tmp_path: Path, umask: int, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Ledger(str(tmp_path / "ledger"))
    keep(place, {1: 1})
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o700)
    assert main(["export", place.location, str(out / "calls.parquet")]) == 0
    report(Totals(), out / "report.html")

    def fail(row: int) -> None:
        raise ValueError(row)

    list(async_map([1, 2], fail, errors=Errors(dead_letter=out / "letters.jsonl")))
    check(out, 0o600)
    # Whoever shares them has said so.
    for path in out.iterdir():
        path.chmod(0o640)
    list(async_map([3], fail, errors=Errors(dead_letter=out / "letters.jsonl")))
    report(Totals(), out / "report.html")
    assert main(["export", place.location, str(out / "calls.parquet")]) == 0
    assert {path.name: mode for path in out.iterdir() if (mode := modes(path)[str(path)]) != 0o640} == {}
    report(Totals(), out / "report.html", mode=0o644)
    assert modes(out / "report.html") == {str(out / "report.html"): 0o644}
    assert len((out / "letters.jsonl").read_text().splitlines()) == 3
    capsys.readouterr()


def test_dead_letters_go_where_a_link_of_the_user_leads(tmp_path: Path) -> None:
    def fail(row: int) -> None:
        raise ValueError(row)

    for there in (True, False):
        target, link = tmp_path / f"target-{there}", tmp_path / f"link-{there}"
        if there:
            target.touch()
        link.symlink_to(target)
        list(async_map([1], fail, errors=Errors(dead_letter=link)))
        assert target.read_text().count("\n") == 1


# -- two users ----------------------------------------------------------------------------------

WORKS = """
import sys
from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.maintenance import expire
from pillarbox.ledger.upkeep import compact
from tests.ledger.unit.segments import key

def work(what):
    if what == "check":
        ledger.check()
    elif what == "identity":
        ledger.check_identity(ledger.identity())
    elif what == "read":
        return sorted(record.value for record in ledger.reader(scope).records())
    elif what == "scopes":
        return len(list(ledger.scopes()))
    elif what == "lease":
        return ledger.lease(scope, "task").acquire()
    elif what == "expire":
        return expire(ledger, scope) > 0
    elif what == "compact":
        return compact(ledger, scope).segments
    else:
        with ledger.writer(scope) as writer:
            writer.append(key(int(what)), int(what))

ledger = Ledger(sys.argv[1], mode=int(sys.argv[2], 8) if sys.argv[2] else None)
scope = Scope("run", "uid")
for what in sys.argv[3:]:
    try:
        print(work(what))
    except LedgerError as error:
        print("LedgerError:", error)
"""


def work(user: int, place: Any, *what: str, mode: str = "", umask: int = 0o022) -> list[str]:
    """Lines, one for each thing that a process of the user does."""
    done = run_as(user, WORKS, str(place), mode, *what, group=GROUP, umask=umask)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.contract
@pytest.mark.parametrize(
    "closed", ["", "/v2", "/v2/run=run", "/v2/run=run/batch=none/uid=uid/config=0000000000000000"]
)
def test_a_worker_of_another_user_is_told_both_users_and_the_mode_that_would_share_the_ledger(
    shared_place: Path, closed: str
) -> None:
    place = shared_place / "ledger"
    use(Ledger(str(place), mode=0o666))
    Path(f"{place}{closed}").chmod(0o700)
    asks = ["read", "lease", "expire", "compact", "7"]
    # These look no further than that.
    further = {"": ["check", "identity", "scopes"], "/v2": ["check", "scopes"], "/v2/run=run": ["scopes"]}
    asks += further.get(closed, [])
    said = work(NOBODY, place, *asks)
    for what, line in zip(asks, said, strict=True):
        assert line.startswith("LedgerError: "), (what, line)
        for part in (
            f"the folder {place}{closed} belongs to user 'root' (0), its mode is 0700",
            f"this process runs as user 'nobody' ({NOBODY})",
            "Ledger(mode=0o660)",
        ):
            assert part in line, (what, line)
    assert found(Ledger(str(place))) == {1: 1, 2: 2, 3: 3}


@pytest.mark.contract
@pytest.mark.parametrize("umask", [0o022, 0o077], ids=oct)
def test_two_users_of_one_group_share_a_ledger_by_its_mode(shared_place: Path, umask: int) -> None:
    place = shared_place / "ledger"
    shared_place.chmod(0o2770)
    os.chown(shared_place, OTHER, GROUP)
    assert work(OTHER, place, "check", "1", mode="660", umask=umask) == ["None", "None"]
    # Without a mode of its own it takes the ledger's.
    asks = {
        "check": "None",
        "identity": "None",
        "2": "None",
        "read": "[1, 2]",
        "scopes": "1",
        "lease": "True",
    }
    asks |= {"compact": "2"}
    assert work(NOBODY, place, *asks, umask=umask) == list(asks.values())
    asks = {"3": "None", "read": "[1, 2, 3]", "expire": "True", "4": "None"}
    assert work(OTHER, place, *asks, umask=umask) == list(asks.values())
    assert work(NOBODY, place, "read", "compact", "expire", "read", umask=umask) == ["[4]", "0", "True", "[]"]


CONTENDS = """
import sys
from pillarbox.ledger import Ledger, Scope
from tests.ledger.unit.segments import key

location, first = sys.argv[1], int(sys.argv[2])
ledger = Ledger(location, mode=0o660)
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    scope = Scope(f"run-{number}", "uid")
    ledger.lease(scope, str(first))
    with ledger.writer(scope) as writer:
        writer.append(key(first), first)
    ledger.reader(scope)
"""


def test_two_users_who_make_the_same_folders_at_a_time_lock_each_other_out_at_no_moment(
    shared_place: Path,
) -> None:
    place = shared_place / "ledger"
    shared_place.chmod(0o2770)
    os.chown(shared_place, OTHER, GROUP)
    users = [
        start_as(user, CONTENDS, str(place), str(user), group=GROUP, umask=0o077) for user in (OTHER, NOBODY)
    ]
    assert all(user.stdout is not None and user.stdout.readline() == "ready\n" for user in users)
    for user in users:
        assert user.stdin is not None
        user.stdin.write("go\n")
        user.stdin.flush()
    for done in map(finish, users):
        assert done.returncode == 0, done.stderr
    for number in range(40):
        reader = Ledger(str(place), mode=0o660).reader(Scope(f"run-{number}", "uid"))
        assert {record.key for record in reader.records()} == {key(OTHER), key(NOBODY)}
    check_shared(place)


def check_shared(place: Path) -> None:
    for path, mode in modes(place).items():
        assert mode & 0o777 == (0o770 if os.path.isdir(path) else 0o660), f"{path}: {mode:04o}"


def test_a_file_of_another_user_in_a_shared_folder_is_told_too(shared_place: Path) -> None:
    ledger = Ledger(str(shared_place / "ledger"), mode=0o666)
    keep(ledger, {1: 1})
    folder = ledger.folder(SCOPE)
    ((name, *_),) = folder.segments()
    for each, what in ((".lock", "7"), (name, "read")):
        path = Path(folder.path, each)
        path.chmod(0o600)
        (said,) = work(NOBODY, ledger.location, what)
        assert f"the file {path} belongs to user 'root' (0), its mode is 0600" in said
        path.chmod(0o666)


def test_a_driver_that_cannot_write_into_the_ledger_of_another_user_is_told_at_once(
    shared_place: Path,
) -> None:
    place = shared_place / "ledger"
    Ledger(str(place), mode=0o644).check()
    (said,) = work(NOBODY, place, "check", mode="644")
    assert f"the folder {place}/v2 belongs to user 'root' (0), its mode is 0755" in said
