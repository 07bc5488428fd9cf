"""The checkpoints of a job on disk: `Checkpoint`, one file each, and `CheckpointFolder`, which has them.

A file is whole or is not there: it is written under another name, synced and renamed. Its name says how far
the two-phase commit of its rows has come: `.checkpoint` while that is not known, `.committed` afterwards.

A folder is confined to the thread of its job; the functions are for any thread.
"""

# Alternatives, and why they are worse.
#
# One file that is replaced each time: a sink whose prepared rows do not survive a crash, as a transaction of
# Kafka, needs the checkpoint before, until the rows of the newest one are known to be committed.
#
# A database: it would have to be synced as often, and a folder of files is read by any tool.

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.kernel import PillarboxError
from pillarbox.ledger.local_folder import sync_path

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

VERSION = 1
DURABLE = ".checkpoint"
COMMITTED = ".committed"
_MAGIC = "pillarbox job"
_LOCK = ".lock"
_JOB = "job"


class CheckpointError(PillarboxError):
    """A checkpoint or savepoint of a job cannot be taken or used; the text says which one, and why.

    >>> from pillarbox.job import CheckpointError
    >>> issubclass(CheckpointError, Exception)
    True
    """


class Checkpoint(NamedTuple):
    """All of a job at one moment. A plain value; any thread may use it.

    id: counts the checkpoints of the job. job: its name, which is made when it first starts. taken: the time
    of its barrier, in seconds since 1970. source: the checkpoint of the source's coordinator; None where it
    has ended. prepared: what the sink has prepared and not committed, oldest first. task: the bytes of the
    task's snapshot; empty where it has ended.
    """

    id: int
    job: str
    taken: float
    source: dict[str, Any] | None
    prepared: list[Any]
    task: bytes

    @property
    def has_ended(self) -> bool:
        """True if the source has been read to its end, and all rows have left."""
        return self.source is None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint durably, as a whole or not at all. Any thread. Raises OSError."""
    head = json.dumps({name: value for name, value in checkpoint._asdict().items() if name != "task"})
    body = head.encode() + b"\n" + checkpoint.task
    new = path.with_name(f".{path.name}.new")
    with open(new, "wb") as file:
        file.write(f"{_MAGIC} {VERSION} {zlib.crc32(body)}\n".encode())
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_path(str(path.parent))


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a file. Any thread. Raises CheckpointError, and OSError without a file."""
    first, _, body = path.read_bytes().partition(b"\n")
    words = first.decode(errors="replace").split(" ")
    if " ".join(words[:-2]) != _MAGIC or not words[-1].isdigit():
        raise CheckpointError(f"{str(path)!r} is not the checkpoint of a job")
    if words[-2] != str(VERSION):
        raise CheckpointError(
            f"{str(path)!r} has version {words[-2]}, and this Pillarbox reads version {VERSION}: use the "
            "Pillarbox that has written it"
        )
    if zlib.crc32(body) != int(words[-1]):
        raise CheckpointError(f"{str(path)!r} is damaged: its checksum does not fit")
    head, _, task = body.partition(b"\n")
    return Checkpoint(**json.loads(head), task=task)


class CheckpointFolder:
    """The checkpoints of one job, in a folder that one job at a time may use. Confined to the job's thread.

    Raises CheckpointError for a folder that another job uses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        if fcntl is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(self._lock)
                raise CheckpointError(
                    f"checkpoints={str(path)!r}: another job uses this folder; wait for its end, or give "
                    "each job a folder of its own"
                ) from None

    def job(self) -> str:
        """The name of the job, which is made at its first start."""
        path = self._path / _JOB
        if not path.exists():
            new = path.with_name(".job.new")
            with open(new, "w") as file:
                file.write(uuid.uuid4().hex)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
            sync_path(str(self._path))
        return path.read_text()

    def newest_first(self) -> Iterator[tuple[Checkpoint, bool]]:
        """The checkpoints, and of each whether its rows are known to be committed."""
        found = [path for path in self._path.iterdir() if path.suffix in (DURABLE, COMMITTED)]
        for path in sorted(found, key=lambda each: int(each.stem), reverse=True):
            yield read_checkpoint(path), path.suffix == COMMITTED

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint durably. Raises OSError, and then it is not there."""
        # spec: SinkCommit!Persist
        write_checkpoint(self._of(checkpoint.id, DURABLE), checkpoint)

    def committed(self, id: int) -> None:
        """Note that the rows of a checkpoint are committed, and remove those before it."""
        # spec: SinkCommit!Retire
        durable = self._of(id, DURABLE)
        if durable.exists():
            os.replace(durable, self._of(id, COMMITTED))
        for path in [*self._path.iterdir()]:
            if path.suffix in (DURABLE, COMMITTED) and int(path.stem) < id:
                path.unlink()

    def forget(self, id: int) -> None:
        """Remove a checkpoint whose prepared rows are lost: the one before it counts."""
        # spec: SinkCommit!GoBack
        self._of(id, DURABLE).unlink()
        sync_path(str(self._path))

    def close(self) -> None:
        """Let another job use the folder. Idempotent."""
        number, self._lock = self._lock, -1
        if number >= 0:
            os.close(number)

    def _of(self, id: int, suffix: str) -> Path:
        return self._path / f"{id:010}{suffix}"
