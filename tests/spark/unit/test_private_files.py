"""Dead letters and progress of Spark's tasks are their owner's alone, until `mode=` says who shares them."""

from __future__ import annotations

import io
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pillarbox import ErrorInfo, Errors
from pillarbox.aio.errors import Failed
from pillarbox.ledger.private_files import folder_mode
from pillarbox.spark import Progress, async_map
from pillarbox.spark.dead_letters import DeadLetter, DeadLetterWriter
from tests.ledger.two_users import GROUP, NOBODY, OTHER, run_as, shared_place

__all__ = ["shared_place"]


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(place: Path) -> dict[str, int]:
    return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in [place, *place.rglob("*")]}


def put_aside(letter: DeadLetter) -> None:
    with DeadLetterWriter(letter) as writer:
        rows = pa.RecordBatch.from_pydict({"id": [1]})
        writer.add(rows, [Failed(ErrorInfo("ValueError", "no", 1, 0.0, None))])


@pytest.mark.contract
def test_dead_letters_are_their_owners_alone_whatever_the_umask_or_as_their_mode_says(
    tmp_path: Path, umask: int
) -> None:
    for name, mode in (("own", None), ("shared", 0o640), ("uri", 0o664)):
        folder = tmp_path / name / "letters"
        put_aside(DeadLetter(folder.as_uri() if name == "uri" else folder, mode=mode))
        put_aside(DeadLetter(folder, mode=mode))
        assert len(list(folder.iterdir())) == 2
        for path, found in modes(tmp_path / name).items():
            wanted = 0o600 if mode is None else mode
            assert found == (folder_mode(wanted) if os.path.isdir(path) else wanted), path
    # A folder that is there stays as it is.
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    put_aside(DeadLetter(there))
    assert sorted(modes(there).values()) == [0o600, 0o755]


@pytest.mark.contract
def test_what_a_job_writes_is_its_owners_alone(spark: SparkSession, tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    async def picky(row: Any) -> int:
        if row.id % 2:
            raise ValueError(row.id)
        return 0

    with Progress(file=io.StringIO()) as progress:
        letters = DeadLetter(tmp_path / "letters")
        rows = async_map(
            spark.range(0, 40, 1, 2),
            picky,
            schema="n long",
            errors=Errors(dead_letter=letters),
            progress=progress,
        )
        assert len(rows.collect()) == 20
    seen |= modes(tmp_path / "letters")
    assert sum(path.endswith(".parquet") for path in seen) == 2
    for path, mode in seen.items():
        assert mode == (0o600 if path.endswith(".parquet") else 0o700), path
    progress.report(tmp_path / "report.html")
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o600
    progress.report(tmp_path / "report.html", mode=0o644)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o644


def test_a_mode_that_is_none_or_has_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^mode=0o770: must be the mode of files"):
        DeadLetter(str(tmp_path), mode=0o770)
    with pytest.raises(TypeError, match="^mode='660': must be an int"):
        DeadLetter(str(tmp_path), mode="660")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^mode=0o660: is for a local folder"):
        DeadLetter("s3://bucket/letters", mode=0o660)
    assert "mode=0o660" in repr(DeadLetter(tmp_path, mode=0o660))


# They come pickled, as from the driver, which has checked the folders as its own user.
LETTERS = """
import pickle
import sys
import pyarrow as pa
from pillarbox.kernel import PillarboxError
from pillarbox.spark.dead_letters import DeadLetterWriter
from pillarbox.aio.errors import ErrorInfo, Failed

for pickled in sys.argv[1:]:
    letter = pickle.loads(bytes.fromhex(pickled))
    try:
        with DeadLetterWriter(letter) as writer:
            writer.add(pa.RecordBatch.from_pydict({"id": [1]}), [Failed(ErrorInfo("E", "no", 1, 0.0, None))])
        print("written")
    except PillarboxError as error:
        print(error)
"""


def pickled(*paths: Path, mode: int | None = None) -> list[str]:
    return [pickle.dumps(DeadLetter(path, mode=mode)).hex() for path in paths]


@pytest.mark.contract
def test_a_task_of_another_user_than_the_dead_letters_folder_is_told_both_and_their_mode(
    shared_place: Path,
) -> None:
    own, below = shared_place / "own", shared_place / "own" / "below"
    put_aside(DeadLetter(below))
    done = run_as(NOBODY, LETTERS, *pickled(own, below))
    assert done.returncode == 0, done.stderr
    for said in done.stdout.splitlines():
        for part in (
            f"the folder {own} belongs to user 'root' (0), its mode is 0700",
            f"runs as user 'nobody' ({NOBODY})",
            "DeadLetter(path, mode=0o660)",
        ):
            assert part in said, said
    assert done.stdout.count("failed rows were not written: ") == 2


def test_two_users_of_one_group_share_dead_letters_by_their_mode(shared_place: Path) -> None:
    shared_place.chmod(0o2770)
    os.chown(shared_place, OTHER, GROUP)
    for user in (OTHER, NOBODY):
        done = run_as(user, LETTERS, *pickled(shared_place / "letters", mode=0o660), group=GROUP, umask=0o077)
        assert done.stdout == "written\n", done.stderr
    files = list((shared_place / "letters").iterdir())
    assert {(stat.S_IMODE(file.stat().st_mode), file.stat().st_gid) for file in files} == {(0o660, GROUP)}
